//! Client half.
