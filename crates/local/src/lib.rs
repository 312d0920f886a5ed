//! evenkeel up: processes, network namespaces, capture rules for one machine
