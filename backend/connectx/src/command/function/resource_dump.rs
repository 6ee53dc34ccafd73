//! Dumps of resources, by a register: what QUERY_QP, QUERY_CQ and QUERY_MKEY say of an object, in segments that
//! the driver passes on as they are (`rdma resource show -r`).
//!
//! A dump is written into the driver's memory, as far as the driver has room. To get the rest it asks again and sends
//! back the register, which says how far the dump is.

use hca::dma::Dma;
use hca::mr::Access;
use hca::{Budget, dma, mr};
use wire::vendor::FIRMWARE;

use crate::bits::Span;
use crate::bits::command::{Opcode, Status};
use crate::bits::completion::query_cq_out;
use crate::bits::memory_key::query_mkey_out;
use crate::bits::queue_pair::query_qp_out;
use crate::bits::resource_dump::{
    COMMAND, DUMP_SIZE, ERROR, INFO, MENU, TERMINATE, resource_dump as register,
    resource_dump_command_segment as command, resource_dump_error_segment as error,
    resource_dump_info_segment as info, resource_dump_menu_record as record,
    resource_dump_menu_segment as menu, resource_dump_resource_segment as resource,
    resource_dump_segment_header as header,
};
use crate::command::Commands;
use crate::command::memory::memory_key::query_mkey;
use crate::command::queue::completion_queue::query_cq;
use crate::command::queue::queue_pair::query_qp;
use crate::refusal::{Outcome, Refusal, refuse};

/// Bytes in front of the register, in request and reply.
const BODY: usize = 0x10;
/// Resources with dumps: names as drivers know them, and kinds of segments. Firmware is free to choose the
/// latter.
const RESOURCES: [(&str, u32, Opcode); 3] = [
    ("PRM_QUERY_QP", 0x3000, Opcode::QueryQp),
    ("PRM_QUERY_CQ", 0x3001, Opcode::QueryCq),
    ("PRM_QUERY_MKEY", 0x3002, Opcode::QueryMkey),
];
/// No such object.
const ABSENT: u32 = 1;

/// The register that a request for a dump writes.
pub(crate) fn parse(request: &[u8]) -> Box<[u8; register::SIZE]> {
    Box::new(Span::new(BODY, register::SIZE).array(request))
}

/// Adds a segment of `len` bytes, zeros but for its header, and returns it.
fn segment(dump: &mut Vec<u8>, kind: u32, len: usize) -> &mut [u8] {
    let from = dump.len();
    dump.resize(from + len.next_multiple_of(4), 0);
    let segment = &mut dump[from..];
    header::LENGTH_DW.set(segment, (segment.len() / 4) as u32);
    header::SEGMENT_TYPE.set(segment, kind);
    segment
}

fn write_text(field: Span, text: &str, out: &mut [u8]) {
    let out = field.get_mut(out);
    let len = text.len().min(out.len());
    out[..len].copy_from_slice(&text.as_bytes()[..len]);
}

/// Dumps a resource within the command, which reads and writes the driver's memory.
pub(crate) fn dump_resource<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    asked: &[u8; register::SIZE],
    reply: &mut [u8],
) -> Outcome {
    let dump = dump(commands, asked)?;
    let done = usize::try_from(register::DEVICE_OPAQUE.get(asked)).unwrap_or(usize::MAX);
    let left = dump.get(done..).ok_or(refuse(
        Status::BadParameter,
        "a dump is not that long: ask for it from its beginning",
    ))?;
    let is_inline = register::INLINE_DUMP.is_set(asked);
    let room = if is_inline {
        register::INLINE_DATA.get(asked).len()
    } else {
        DUMP_SIZE.get(asked) as usize
    };
    // Readers take segments dword by dword.
    let part = &left[..left.len().min(room & !3)];
    if part.is_empty() {
        return Err(refuse(Status::BadParameter, "there is no room for a dump"));
    }
    let mut answer = *asked;
    if is_inline {
        let out = register::INLINE_DATA.get_mut(&mut answer);
        out.fill(0);
        out[..part.len()].copy_from_slice(part);
    } else {
        write_dump(commands, asked, part)?;
    }
    let done = done + part.len();
    register::MORE_DUMP.set(&mut answer, u32::from(done < dump.len()));
    let sequence = register::SEQ_NUM.get(asked).wrapping_add(1) & 0xf;
    register::SEQ_NUM.set(&mut answer, sequence);
    register::DEVICE_OPAQUE.set(&mut answer, done as u64);
    DUMP_SIZE.set(&mut answer, part.len() as u32);
    let out = reply.get_mut(BODY..).unwrap_or_default();
    let len = out.len().min(answer.len());
    out[..len].copy_from_slice(&answer[..len]);
    Ok(())
}

/// Writes to where the driver wants it, by a key of the driver's.
fn write_dump<D: Dma + 'static>(commands: &Commands<'_, D>, asked: &[u8], part: &[u8]) -> Outcome {
    const NO_KEY: Refusal = refuse(
        Status::BadParameter,
        "the key does not allow to write the dump there",
    );
    let (key, addr) = (register::MKEY.get(asked), register::ADDRESS.get(asked));
    let keys = commands.engine.vf(commands.vf).keys();
    let region = keys.get(key >> 8).ok_or(NO_KEY)?;
    let needed = Access::LOCAL_WRITE;
    let len = part.len() as u64;
    let checked = region.check(key, region.pd, addr, len, needed);
    checked.map_err(|_| NO_KEY)?;
    if matches!(region.translation, mr::Translation::Indirect(_)) {
        return Err(NO_KEY);
    }
    let mut done = 0;
    while done < part.len() {
        let at = addr.wrapping_add(done as u64);
        let left = len - done as u64;
        let found = keys.translate(region, key, at, left, needed, &mut { Budget::NONE });
        let (at, run) = found.map_err(|_| NO_KEY)?;
        let run = usize::try_from(run).unwrap_or(usize::MAX).max(1);
        let end = part.len().min(done.saturating_add(run));
        let written = dma::write(commands.engine.vf(commands.vf).dma(), at, &part[done..end]);
        written.map_err(|_| NO_KEY)?;
        done = end;
    }
    Ok(())
}

/// All of a dump.
fn dump<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    asked: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let kind = register::SEGMENT_TYPE.get(asked);
    let known = RESOURCES.iter().find(|(_, number, _)| *number == kind);
    if known.is_none() && kind != MENU {
        return Err(refuse(
            Status::BadParameter,
            "no such kind of resources: ask for the menu",
        ));
    }
    let mut dump = Vec::new();
    let first = segment(&mut dump, INFO, info::SIZE);
    info::DUMP_VERSION.set(first, 1);
    let (major, minor, subminor) = FIRMWARE;
    let version = u32::from(major) << 24 | u32::from(minor) << 16 | u32::from(subminor);
    info::FW_VERSION.set(first, version);
    let called = segment(&mut dump, COMMAND, command::SIZE);
    command::SEGMENT_CALLED.set(called, kind);
    for (to, from) in [
        (command::INDEX1, register::INDEX1),
        (command::INDEX2, register::INDEX2),
        (command::NUM_OF_OBJ1, register::NUM_OF_OBJ1),
        (command::NUM_OF_OBJ2, register::NUM_OF_OBJ2),
    ] {
        to.set(called, from.get(asked));
    }
    match known {
        None => add_menu(&mut dump),
        Some(&(_, kind, query)) => {
            add_resource(
                commands,
                &mut dump,
                kind,
                query,
                register::INDEX1.get(asked),
            );
        }
    }
    segment(&mut dump, TERMINATE, header::SIZE);
    Ok(dump)
}

fn add_resource<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    dump: &mut Vec<u8>,
    kind: u32,
    query: Opcode,
    number: u32,
) {
    let mut said = vec![0; query_qp_out::SIZE];
    let number_asked = number & 0x00ff_ffff;
    let (found, len) = match query {
        Opcode::QueryQp => (
            query_qp(commands, number_asked, &mut said),
            query_qp_out::SIZE,
        ),
        Opcode::QueryCq => (
            query_cq(commands, number_asked, &mut said),
            query_cq_out::SIZE,
        ),
        _ => (
            query_mkey(commands, number_asked, &mut said),
            query_mkey_out::SIZE,
        ),
    };
    if found.is_err() || number > 0x00ff_ffff {
        let error = segment(dump, ERROR, error::SIZE);
        error::SYNDROME_ID.set(error, ABSENT);
        write_text(error::ERROR, "no such object", error);
        return;
    }
    // Behind a context follows a list of pages, which is left out.
    let len = len.min(0x110);
    let out = segment(dump, kind, resource::SIZE + len);
    resource::INDEX1.set(out, number);
    out[resource::SIZE..].copy_from_slice(&said[..len]);
}

fn add_menu(dump: &mut Vec<u8>) {
    let len = menu::SIZE + RESOURCES.len() * record::SIZE;
    let out = segment(dump, MENU, len);
    menu::NUM_OF_RECORDS.set(out, RESOURCES.len() as u32);
    let records = out[menu::SIZE..].chunks_exact_mut(record::SIZE);
    for (out, (name, kind, _)) in records.zip(RESOURCES) {
        record::SUPPORT_INDEX1.set(out, 1);
        record::MUST_HAVE_INDEX1.set(out, 1);
        record::SUPPORT_NUM_OF_OBJ1.set(out, 1);
        record::SEGMENT_TYPE.set(out, kind);
        write_text(record::SEGMENT_NAME, name, out);
        write_text(record::INDEX1_NAME, "number", out);
    }
}
