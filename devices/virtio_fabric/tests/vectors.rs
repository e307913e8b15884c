//! The specification's test vectors, byte for byte and in both directions.

use virtio_fabric::wire::*;

/// Bytes written as in the specification.
fn bytes(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn command(text: &str, id: u16, request: Request) {
    let command = Command { id, request };
    assert_eq!(command.emit().as_slice(), bytes(text), "{command:?}");
    assert_eq!(Command::parse(&bytes(text)), Ok(command));
}

fn completion(text: &str, opcode: Opcode, id: u16, reply: Reply) {
    let completion = Completion { id, status: Status::Success, reply };
    assert_eq!(completion.emit().as_slice(), bytes(text), "{completion:?}");
    assert_eq!(Completion::parse(opcode, &bytes(text)), Ok(completion));
}

#[test]
fn control_commands() {
    command(
        "00 00 00 00 ff ff 00 00 00 04 00 00 20 00 00 00",
        0,
        Request::Connect { instance: NEW_INSTANCE, vq: 0, body: 1024, size: CONTROL_QUEUE_SIZE },
    );
    command(
        "00 00 05 00 03 00 01 00 00 00 00 00 80 00 00 00",
        5,
        Request::Connect { instance: 3, vq: 1, body: 0, size: 128 },
    );
    command(
        "06 10 07 00 00 00 00 00 00 00 00 00 00 00 00 00",
        7,
        Request::GetFeature(Opcode::GetDeviceFeature, 0),
    );
    command("0c 10 08 00 00 00 08 00 00 00 00 00 00 00 00 00", 8, Request::GetConfig { offset: 0, bytes: 8 });
    command("05 10 09 00 0f 00 00 00 00 00 00 00 00 00 00 00", 9, Request::SetStatus(0xf));
}

#[test]
fn control_completions() {
    completion(
        "00 00 00 00 03 00 00 00 00 00 00 00 00 00 00 00",
        Opcode::Connect,
        0,
        Reply::Connect { instance: 3, version: 0, size: 0, flags: ReplyFlags::empty(), body: 0 },
    );
    completion(
        "00 00 07 00 00 00 00 00 04 10 00 00 01 00 00 00",
        Opcode::GetDeviceFeature,
        7,
        Reply::Feature(1 << 32 | 1 << 12 | 1 << 2),
    );
    completion(
        "00 00 08 00 01 00 00 00 00 00 20 00 00 00 00 00",
        Opcode::GetConfig,
        8,
        Reply::Config { generation: 1, value: 0x20_0000 },
    );
    let change = bytes("00 00 fe ff 02 00 00 00 00 00 00 00 00 00 00 00");
    assert_eq!(Event::ConfigChange(2).emit().as_slice(), change);
    assert_eq!(Event::parse(&change), Ok(Event::ConfigChange(2)));
}

#[test]
fn buffers_of_the_base_profile() {
    command(
        "ff 0f 0a 00 00 00 00 00 10 10 00 00 01 00 00 00",
        10,
        Request::Vq { out_length: 4112, in_length: 1 },
    );
    completion(
        "00 00 0a 00 00 00 00 00 01 00 00 00 01 00 00 00",
        Opcode::Vq,
        10,
        Reply::Vq { used: 1, moved: 1 },
    );
    // The older layout of the same completion is that of eager buffers.
    completion(
        "00 00 0a 00 01 00 00 00 00 00 00 00 00 00 00 00",
        Opcode::VqKeyedEagerBuf,
        10,
        Reply::VqEager { used: 1 },
    );
}

const LIMITS: VqxLimits = VqxLimits {
    max_out_inline: 8192,
    max_xfer: 1 << 20,
    max_in_descs: 16,
    max_out_descs: 0,
    data_offset: 0,
    out_split: 16,
    max_tail: 256,
};

#[test]
fn read_by_the_extension() {
    let text = "fc 0f 0e 00 06 01 00 00 10 00 00 00 01 10 00 00
                00 00 56 34 12 7f 00 00 00 10 00 00 38 12 00 00
                00 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00";
    let vqx = VqxCommand {
        flags: VqxFlags::INV_OK | VqxFlags::TAIL_OK,
        in_descs: 1,
        out_descs: 0,
        turn: 0,
        out_length: 16,
        in_length: 4097,
    };
    let desc = Keyed { addr: 0x7f12_3456_0000.into(), length: 4096.into(), key: 0x1238.into() };
    let mut block_header = [0; 16];
    block_header[8] = 8;
    let mut emitted = Vec::new();
    VqxMessage::emit(&mut emitted, 14, &vqx, &[desc], &block_header, &LIMITS, false);
    assert_eq!(emitted, bytes(text));
    let message = VqxMessage::parse(&vqx, &emitted[HEADER..], &LIMITS, false).unwrap();
    assert_eq!((message.in_descs, message.out_head, message.tail), (&[desc][..], &block_header[..], 1));
    assert!(message.out_descs.is_empty() && message.out_rest.is_empty());
    command("fc 0f 0e 00 06 01 00 00 10 00 00 00 01 10 00 00", 14, Request::Vqx(vqx));
    completion(
        "00 00 0e 00 00 00 01 00 01 10 00 00 00 10 00 00",
        Opcode::Vqx,
        14,
        Reply::Vqx { window: 0, tail: 1, used: 4097, moved: 4096 },
    );
}

#[test]
fn write_by_the_extension() {
    let vqx = VqxCommand {
        flags: VqxFlags::TAIL_OK,
        in_descs: 0,
        out_descs: 0,
        turn: 0,
        out_length: 4112,
        in_length: 1,
    };
    command("fc 0f 0f 00 04 00 00 00 10 10 00 00 01 00 00 00", 15, Request::Vqx(vqx));
    let out: Vec<u8> = (0..4112).map(|n| n as u8).collect();
    for data_offset in [0, 32, 512] {
        let limits = VqxLimits { data_offset, ..LIMITS };
        let mut emitted = Vec::new();
        VqxMessage::emit(&mut emitted, 15, &vqx, &[], &out, &limits, false);
        assert_eq!(emitted.len(), if data_offset == 0 { 16 + 4112 } else { usize::from(data_offset) + 4096 });
        let message = VqxMessage::parse(&vqx, &emitted[HEADER..], &limits, false).unwrap();
        assert_eq!((message.out_head, message.out_rest), out.split_at(16));
        for wrong in [&emitted[HEADER..emitted.len() - 1], &[&emitted[HEADER..], &[0]].concat()] {
            assert!(VqxMessage::parse(&vqx, wrong, &limits, false).is_err());
        }
    }
}

#[test]
fn immediate_data() {
    for (value, immediate) in [
        (0x1000_000e, Immediate::DoneFull(14)),
        (0x2001_000e, Immediate::DoneSegment { id: 14, segment: 1 }),
        (0x3000_000f, Immediate::DoneNone(15)),
        (0x4000_0011, Immediate::Eager(17)),
    ] {
        assert_eq!(immediate.emit(), value);
        assert_eq!(Immediate::try_from(value), Ok(immediate));
    }
    for value in [0, 0x0000_000e, 0x1001_000e, 0x5000_0000, u32::MAX] {
        assert_eq!(Immediate::try_from(value), Err(Error::Immediate(value)));
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    let vqx = VqxCommand {
        flags: VqxFlags::TAIL_OK,
        in_descs: 1,
        out_descs: 0,
        turn: 0,
        out_length: 0,
        in_length: 4096,
    };
    let parse = |vqx: VqxCommand, addr: u64, length: u32, stream| {
        let desc = Keyed { addr: addr.into(), length: length.into(), key: 1.into() };
        let mut message = Vec::new();
        VqxMessage::emit(&mut message, 0, &vqx, &[desc], &[], &LIMITS, stream);
        VqxMessage::parse(&vqx, &message[HEADER..], &LIMITS, stream).map(|m| m.tail)
    };
    assert_eq!(parse(vqx, 0, 4096, false), Ok(0));
    assert_eq!(parse(vqx, 0, 4000, false), Ok(96));
    assert_eq!(parse(vqx, 0, 4096, true), Err(Error::Descriptor("descriptors on a stream")));
    assert_eq!(parse(vqx, 0, 0, false), Err(Error::Descriptor("no bytes")));
    assert_eq!(
        parse(vqx, u64::MAX - 4094, 4096, false),
        Err(Error::Descriptor("wraps around the address space"))
    );
    assert_eq!(parse(vqx, 0, 4097, false), Err(Error::Length("descriptors exceed the writable length")));
    let status = |result| match result {
        Err(Error::Limit(_, status)) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!(status(parse(vqx, 0, 3839, false)), Status::Descriptor);
    let no_tail = VqxCommand { flags: VqxFlags::empty(), ..vqx };
    assert_eq!(status(parse(no_tail, 0, 4095, false)), Status::Descriptor);
    let huge = VqxCommand { in_length: u32::MAX, ..vqx };
    assert_eq!(status(parse(huge, 0, u32::MAX, false)), Status::Transfer);
    let mut reserved = Command { id: 1, request: Request::Vqx(vqx) }.emit();
    reserved[4] |= 0x80;
    assert_eq!(Command::parse(&reserved), Err(Error::Flag(0x84)));
}

#[test]
fn names() {
    let parse = |change: &dyn Fn(&mut [u8; CONNECT_BODY])| {
        let mut body = ConnectBody { initiator: Name::new("a").unwrap(), ..Default::default() }.emit();
        change(&mut body);
        ConnectBody::parse(&body).map(|body| body.initiator.as_str().len())
    };
    assert_eq!(parse(&|body| body[..255].fill(b'x')), Ok(255));
    assert_eq!(parse(&|body| body[..256].fill(b'x')), Err(Error::Name("not terminated")));
    assert_eq!(parse(&|body| body[0] = 0xff), Err(Error::Name("not UTF-8")));
    assert_eq!(parse(&|body| body[0] = 7), Err(Error::Name("control character")));
    assert_eq!(parse(&|body| body[..4].copy_from_slice(b"a/..")), Err(Error::Name("segment ..")));
    assert_eq!(Name::new(&"x".repeat(256)), Err(Error::Name("longer than 255 bytes")));
}

#[test]
fn the_extension_is_found_where_it_belongs() {
    let extension = Extension { ver_min: VERSION, ver_max: VERSION, epoch: 7, ..Default::default() };
    let body = ConnectBody { extension: Some(extension), ..Default::default() }.emit();
    assert_eq!(body[512..518], [0x56, 0x4f, 0x46, 0x58, 128, 0]);
    assert_eq!(body[552..556], [7, 0, 0, 0]);
    let mut small = body;
    small[516] = 127;
    assert_eq!(ConnectBody::parse(&small), Err(Error::Size(127)));
    assert_eq!(ConnectBody::parse(&body[1..]), Err(Error::Short { got: 1023, want: 1024 }));
}
