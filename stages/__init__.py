"""One module per pipeline stage: `run(params, inputs, outputs, context)` and its declaration."""
