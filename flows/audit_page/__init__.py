"""`afm report`: one page that shows the chain behind the models beside what the stages measured."""
