//! RDMA verbs as plain types, and the provider that carries them out.
