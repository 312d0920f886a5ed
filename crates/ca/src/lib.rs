//! The mesh's certificate authority: root, signing, workload tokens, trust bundle
