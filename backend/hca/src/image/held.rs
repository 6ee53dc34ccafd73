//! Packets held for a quiesced function.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wire::{Mtu, Psn, Qpn};

use super::{ImageError, Object};
use crate::engine::Engine;
use crate::engine::quiesce::is_sound;
use crate::objects::ids::VfId;
use crate::objects::vf::quiesce::{For, Held, held_bytes};
use crate::queue_format::QueueFormat;
use crate::transport::{Address, Content, Frame, Session};

/// Something that waits for a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldImageV1 {
    pub(crate) to: For,
    pub(crate) frame: FrameImageV1,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameImageV1 {
    pub(crate) address: Address,
    pub(crate) mtu: Mtu,
    pub(crate) psn: Psn,
    pub(crate) first: bool,
    pub(crate) last: bool,
    pub(crate) solicited: bool,
    pub(crate) acknowledge: bool,
    pub(crate) srq: Qpn,
    /// In requests of the DC service.
    #[serde(default)]
    pub(crate) session: Option<Session>,
    pub(crate) content: Content,
    /// In hexadecimal.
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub(crate) payload: Vec<u8>,
}

fn to_text<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits =
        |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)]));
    serializer.serialize_str(&bytes.iter().flat_map(digits).collect::<String>())
}

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8; 2]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    let bytes = bytes.filter(|_| rest.is_empty());
    bytes.ok_or_else(|| serde::de::Error::custom("a payload is no bytes in hexadecimal"))
}

impl HeldImageV1 {
    pub(crate) fn save(Held { to, frame, .. }: &Held) -> Self {
        Self::of(*to, frame)
    }

    /// A frame that waits for a turn, if its payload can be had and takes no more than `left` bytes.
    pub(crate) fn in_line(frame: &Frame, left: &mut usize) -> Option<Self> {
        let rest = left.checked_sub(held_bytes(frame))?;
        let mut frame = frame.clone();
        frame.take_along();
        *left = rest;
        frame
            .loan
            .is_none()
            .then(|| Self::of(For::QueuePair, &frame))
    }

    fn of(to: For, frame: &Frame) -> Self {
        Self {
            to,
            frame: FrameImageV1 {
                address: frame.address,
                mtu: frame.mtu,
                psn: frame.psn,
                first: frame.first,
                last: frame.last,
                solicited: frame.solicited,
                acknowledge: frame.acknowledge,
                srq: frame.srq,
                session: frame.session.as_deref().copied(),
                content: frame.content.clone(),
                payload: frame.payload.clone(),
            },
        }
    }

    fn restore(self) -> Held {
        let FrameImageV1 {
            address,
            mtu,
            psn,
            first,
            last,
            solicited,
            acknowledge,
            srq,
            session,
            content,
            payload,
        } = self.frame;
        Held {
            to: self.to,
            // The reason of a refusal is for the log, which no image has.
            frame: Frame {
                first,
                last,
                solicited,
                acknowledge,
                srq,
                session: session.map(Box::new),
                payload,
                ..Frame::new(address, mtu, psn, content)
            },
            in_flight: None,
        }
    }
}

impl<F: QueueFormat> Engine<F> {
    /// Has what an image has of others' frames wait for a function. They may say anything that others may
    /// send to it.
    pub(super) fn restore_held(
        &mut self,
        vf: VfId,
        images: Vec<HeldImageV1>,
    ) -> Result<(), ImageError> {
        if images.is_empty() {
            return Ok(());
        }
        let rested = self.executor.objects.vf(vf).is_quiet();
        self.executor.quiesce(vf);
        for image in images {
            let of = Object::new("frame to queue pair", image.frame.address.dest_qp.value());
            let held = image.restore();
            if !is_sound(&held) {
                let what = "nobody could have sent it".to_owned();
                return Err(ImageError::Invalid { of, what });
            }
            if let Some(rest) = &mut self.executor.objects.vf_mut(vf).quiesced
                && !rest.hold(held)
            {
                return Err(ImageError::Exhausted(of));
            }
        }
        if !rested {
            self.executor.resume(vf);
        }
        Ok(())
    }
}
