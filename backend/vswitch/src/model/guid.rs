//! The GUIDs a configuration leaves out.

use wire::Guid;

/// The upper half of every derived GUID. The company identifier is the one ConnectX adapters
/// carry, so that tools which print vendors print the vendor of the device that is presented.
const DERIVED_PREFIX: u32 = 0x0002_c903;

/// The GUID of the thing of this kind and name: always the same, never zero.
///
/// A VF's depends on its own name alone and not on its hypervisor's, since the GUID belongs to
/// the VM and moves with it.
#[must_use]
pub fn derive_guid(kind: &str, name: &str) -> Guid {
    let hash = mix(fnv1a(kind.bytes().chain([0]).chain(name.bytes())));
    Guid::from((u64::from(DERIVED_PREFIX) << 32) | (hash & u64::from(u32::MAX)))
}

/// A name of this kind for the thing that `text` says: `KIND-` and 16 hexadecimal digits, always
/// the same.
#[must_use]
pub fn derive_name(kind: &str, text: &str) -> String {
    format!("{kind}-{:016x}", mix(fnv1a(text.bytes())))
}

/// FNV-1a, 64 bits wide: chosen because its definition is a few lines that will not change, which
/// `std`'s hashers do not promise.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// SplitMix64's finalizer: names that differ in one letter share no digits afterwards.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv1a_agrees_with_its_published_vectors() {
        // From the test vectors of draft-eastlake-fnv.
        assert_eq!(fnv1a("".bytes()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a".bytes()), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a("foobar".bytes()), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn mix_agrees_with_the_reference_sequence() {
        // The first output of SplitMix64 for seed 0, as published with its reference code.
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn kinds_keep_equal_names_apart() {
        assert_ne!(derive_guid("VF", "a"), derive_guid("vswitch", "a"));
    }
}
