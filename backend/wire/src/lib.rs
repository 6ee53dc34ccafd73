//! InfiniBand on the wire: addresses, packet headers, MADs and capture records.
