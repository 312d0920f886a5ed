//! End-to-end and interoperation tests of the `evenkeel` binary.

mod differential;
mod docs;
mod interop;
mod proxy;
mod up;
