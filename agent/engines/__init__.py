"""Context engines that plugins bring: contract, loader, and the adapter that runs them."""
