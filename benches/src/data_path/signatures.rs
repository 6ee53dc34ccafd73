//! Costs of signatures.

use test_driver::{
    Access, KeyChange, KeyUpdate, Klm, MemoryRegion, PAGE, SendRequest, SignatureForm,
    SignatureValue, pattern,
};

use crate::daemons::pace::median;
use crate::data_path::bulk::Stream;
use crate::{BenchError, Connected, Context, Daemon, Measurement, Peer, Pinned, Reference, Result};

/// Bytes of a message.
const MESSAGE: usize = 64 << 10;
/// Bytes of a block, and of what is behind it.
const BLOCK: usize = 512;
const WIDTH: usize = 8;
/// Bytes of a message with what is behind its blocks.
const SIGNED: usize = MESSAGE / BLOCK * (BLOCK + WIDTH);

/// A key of a peer's buffer with T10-DIF in memory, and nothing on the wire.
fn region(
    peer: &mut Peer,
    changer: &mut Connected,
    value: &SignatureValue,
) -> Result<MemoryRegion> {
    let region = MemoryRegion::with_signatures(&peer.pd)?;
    let form = SignatureForm {
        memory: Some(value.number()),
        wire: None,
    };
    let stretch = Klm {
        len: SIGNED as u32,
        key: peer.region.key(),
        addr: peer.region.start(),
    };
    let change = KeyChange::Signatures {
        access: Access::ALL,
        form: &form.to_bytes(),
        stretches: &[stretch],
    };
    let key = region.key();
    changer.post_signaled(&SendRequest::key_update(KeyUpdate { key, change }))?;
    changer.drain(peer)?;
    Ok(region)
}

/// That the blocks lie as they should, with something behind each.
fn check(peer: &Peer, seed: u64) -> Result<()> {
    let mut expected = vec![0; MESSAGE];
    pattern::bytes(seed, 0, &mut expected);
    let mut found = vec![0; SIGNED];
    peer.buffer.read(0, &mut found);
    let blocks = found.chunks(BLOCK + WIDTH).zip(expected.chunks(BLOCK));
    for (number, (found, expected)) in blocks.enumerate() {
        let (data, behind) = found.split_at(BLOCK);
        let reference = (number as u32).to_be_bytes();
        if data != expected || behind[4..] != reference {
            let word = |bytes: &[u8]| {
                bytes
                    .first_chunk()
                    .map_or(0, |word| u64::from_be_bytes(*word))
            };
            return Err(BenchError::Word {
                index: number,
                found: word(found),
                expected: word(expected),
            });
        }
    }
    Ok(())
}

/// Measures it: 64 KiB writes to a key that makes T10-DIF behind each block against those to a plain one.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<Measurement> {
    const SEED: u64 = 7;
    let daemon = Daemon::start(context.processors)?;
    let mut peers = daemon.peers(SIGNED.next_multiple_of(PAGE))?;
    pattern::fill(&peers[0].buffer, 0, MESSAGE, SEED);
    let mut stream = Stream::new(&peers, MESSAGE)?;
    let [a, b] = &mut peers;
    let mut changer = Connected::between(b, a, 8)?;
    let value = SignatureValue::new(&b.pd)?;
    let mut signed = region(b, &mut changer, &value)?;
    let _pinned = Pinned::to(context.processors.driver)?;
    let (mut ratios, mut times) = (Vec::new(), Vec::new());
    for _ in 0..context.effort.rounds * context.effort.batches.max(1) {
        let plain = stream.time(&mut peers)?;
        std::mem::swap(&mut peers[1].region, &mut signed);
        let time = stream.time(&mut peers)?;
        std::mem::swap(&mut peers[1].region, &mut signed);
        ratios.push(time / plain);
        times.push(plain);
    }
    peers[1].buffer.fill(0);
    std::mem::swap(&mut peers[1].region, &mut signed);
    stream.time(&mut peers)?;
    check(&peers[1], SEED)?;
    std::mem::swap(&mut peers[1].region, &mut signed);
    Ok(Measurement {
        name: "signature_over_plain",
        value: median(ratios),
        unit: "times",
        reference: Some(Reference {
            name: "a message without signatures, ns",
            value: median(times),
        }),
    })
}
