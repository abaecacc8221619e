//! Duramen.
