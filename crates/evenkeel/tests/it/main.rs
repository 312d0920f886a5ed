//! End-to-end and interoperation tests of the `evenkeel` binary.

mod docs;
mod interop;
mod proxy;
mod up;
