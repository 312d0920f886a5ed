//! End-to-end and interoperation tests of the `evenkeel` binary.

mod differential;
mod docs;
mod h2spec;
mod interop;
mod proxy;
mod up;
