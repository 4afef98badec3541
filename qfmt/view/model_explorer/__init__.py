"""An extension of Google's Model Explorer: `model-explorer m.qfb --extensions=qfmt.view.model_explorer`."""
