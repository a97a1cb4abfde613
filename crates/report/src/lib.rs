//! Run bundles to a static site.
