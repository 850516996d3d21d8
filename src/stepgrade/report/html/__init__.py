"""Results as HTML: charts are laid out here, templates draw them."""
