"""Raw material of made-up names: words, syllables and endings, kept apart from the code."""


def words(text: str) -> tuple[str, ...]:
    """The words of a string."""
    return tuple(text.split())


ADJECTIVES = words(
    "Amber Gilded Crimson Azure Ivory Scarlet Violet Jade Coral Onyx Pearl Ruby Indigo Maple "
    "Cedar Willow Birch Aspen Hazel Laurel Thorn Frost Storm Misty Sunny Rainy Cloudy Hidden "
    "Silent Broken Ancient Little Great Upper Lower Northern Southern Eastern Western Dusty "
    "Stony Sandy Icy Grand Royal Noble Wild Quiet Bright Dark Pale Deep High Long Short Round "
    "Green White Black Brown Grey Crooked Frozen Burning Lonely Merry Narrow Painted Rusty "
    "Salty Smoky Tall Twin Vast Windy Young Third Seventh Central United Free New Old Equal "
    "Distant Gentle Humble Iridescent Marble Velvet Woven Ashen Bitter Clever Daring Eager "
    "Fierce Golden Hollow Inner Jolly"
)
NOUNS = words(
    "Falcon Raven Otter Badger Heron Salmon Tiger Panther Bison Camel Dragon Eagle Ferret "
    "Gecko Hornet Iguana Jaguar Koala Lemur Magpie Newt Owl Parrot Quail Rabbit Spider Turtle "
    "Viper Walrus Yak Zebra River Valley Hill Lake Forest Harbor Bridge Tower Castle Garden "
    "Meadow Island Canyon Desert Glacier Summit Cavern Orchard Village Market Temple Palace "
    "Lantern Anchor Compass Hammer Mirror Candle Feather Stone Field Crown Shore Crossing "
    "Springs Rapids Point Cliff Grove Marsh Delta Basin Ridge Wharf Mill Forge Chapel Abbey "
    "Gate Wall Square Street Shield Sword Arrow Bell Drum Flute Harp Song Dream Whisper "
    "Shadow Ember Spark Cinder Wave Tide Current Comet Orbit Prism Ladder Thread Needle "
    "Basket Kettle Pillow Ribbon Saddle"
)
PLACE_PREFIXES = words(
    "San Santa Saint St. New Port Fort Mount El La Los Al Ben Great North South East West "
    "Upper Lower Grand Bad Villa Puerto Costa Ras"
)
PLACE_SUFFIXES = words(
    "City Islands Bay Beach Falls Heights Springs Harbour Valley Hills Coast International "
    "Field Republic Union"
)
ENDINGS = words(
    "land ia stan burg ville ton ium ov ski son ez grad polis ford ham wick dorf stadt mouth "
    "bury by vik nes mar abad pur nagar shahr giri wa ya ra na ta ne no lo que ese ous ine "
    "ane gen on um us is as os er en el an in"
)
_CLUSTERS = words(
    "b bl br c ch cl cr d dj dr f fl fr g gh gl gr gu h j k kh kl kr l ll m mb n nd ng ny p "
    "ph pl pr q qu r rh s sc sh sk sl sm sn sp st str t th tr ts tz v vl w wh x y z zh"
)
_SIMPLE = words("b c d f g h j k l m n p r s t v w z")
ONSETS = _CLUSTERS + ("",) * 6 + _SIMPLE * 3
"""What a syllable starts with; simple onsets and none are more frequent."""

VOWELS = words("a a a a e e e e i i i o o o u u ai au ay ea ee ei ia ie io oa oo ou ua ue ui y")
CODAS = ("",) * 36 + words(
    "n n r r l l s s m t k d g b ck ct ft ld lk lt mp nd ng nk nt rd rk rm rn rt sh st th x z ch p"
)
"""What a syllable ends with: most end with a vowel."""

ACCENTED_VOWELS = words("á à â ã ä å é è ê ë í î ï ó ô õ ö ø ú û ü ý ă ā ē ī ō ū ı")
ACCENTED_ONSETS = words("ç ñ š ž ł ř ś ț ş ğ đ č")
