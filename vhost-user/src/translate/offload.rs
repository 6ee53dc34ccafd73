//! Checksums that a guest leaves to its network card (virtio 1.3, 5.1.6.2). The segments that it leaves to it as
//! well are trains ([`wire::ipoib::Train`]).

use super::Dropped;
use super::bytes::checksum;

/// Fills in the checksum of a packet from `start` on, at `offset` from there. The place has the sum of the
/// pseudo header already.
///
/// # Errors
/// [`Dropped::Short`] where there is no such place.
pub fn complete(packet: &mut [u8], start: usize, offset: usize) -> Result<(), Dropped> {
    let counted = packet.get_mut(start..).ok_or(Dropped::Short)?;
    let sum = checksum(&[counted]);
    let place = counted.get_mut(offset..).and_then(<[u8]>::first_chunk_mut);
    // 0 would be none (RFC 768); both stand for the same.
    let sum = if sum == 0 { 0xffff } else { sum };
    *place.ok_or(Dropped::Short)? = sum.to_be_bytes();
    Ok(())
}
