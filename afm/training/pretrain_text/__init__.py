"""The text the small base model is pre-trained on: generated, about made-up entities only."""
