//! The benchmark program from outside.

mod instructions;
