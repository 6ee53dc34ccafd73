//! The device-independent host channel adapter: verbs objects and transport.
