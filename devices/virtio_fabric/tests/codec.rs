//! Whatever is emitted is parsed to itself, and whatever bytes arrive, parsers answer.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use virtio_fabric::wire::*;

fn plain() -> impl Strategy<Value = Request> {
    use Opcode::*;
    let opcodes =
        vec![Disconnect, Keepalive, GetVendorId, GetDeviceId, ResetDevice, GetStatus, GetKeyedNumDescs];
    select(opcodes).prop_map(Request::Plain)
}

fn vqx() -> impl Strategy<Value = VqxCommand> {
    (0u8..8, any::<(u8, u8, u8, u32, u32)>()).prop_map(
        |(flags, (in_descs, out_descs, turn, out_length, in_length))| VqxCommand {
            flags: VqxFlags::from_bits_truncate(flags),
            in_descs,
            out_descs,
            turn,
            out_length,
            in_length,
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let control: Vec<_> = Opcode::ALL.iter().copied().filter(|opcode| opcode.is_extended_control()).collect();
    prop_oneof![
        plain(),
        any::<(u16, u16, u32, u16)>().prop_map(|(instance, vq, body, size)| Request::Connect {
            instance,
            vq,
            body,
            size
        }),
        (select(vec![Opcode::GetFeature, Opcode::GetDeviceFeature]), any::<u32>())
            .prop_map(|(opcode, window)| Request::GetFeature(opcode, window)),
        (select(vec![Opcode::SetFeature, Opcode::SetDriverFeature]), any::<(u32, u64)>())
            .prop_map(|(opcode, (window, bits))| Request::SetFeature(opcode, window, bits)),
        any::<u32>().prop_map(Request::SetStatus),
        any::<u16>().prop_map(Request::GetVqSize),
        (any::<u16>(), select(vec![1, 2, 4, 8]))
            .prop_map(|(offset, bytes)| Request::GetConfig { offset, bytes }),
        (any::<(u16, u64)>(), select(vec![1, 2, 4, 8]))
            .prop_map(|((offset, value), bytes)| Request::SetConfig { offset, bytes, value }),
        any::<(u16, u8)>().prop_map(|(vq, descs)| Request::GetKeyedEagerBuf { vq, descs }),
        any::<(u32, u32)>().prop_map(|(out_length, in_length)| Request::Vq { out_length, in_length }),
        any::<(u32, u32, u32)>().prop_map(|(out_offset, out_length, in_length)| {
            Request::VqKeyedEagerBuf { out_offset, out_length, in_length }
        }),
        (select(control), any::<(u32, u32, u32)>())
            .prop_map(|(opcode, (body, arg0, arg1))| Request::Control { opcode, body, arg0, arg1 }),
        vqx().prop_map(Request::Vqx),
    ]
}

fn limits() -> impl Strategy<Value = VqxLimits> {
    (1u32..5000, 0u16..32, 0u16..64, 0u16..600).prop_map(|(max_xfer, descs, out_split, data_offset)| {
        VqxLimits {
            max_out_inline: max_xfer / 2,
            max_xfer,
            max_in_descs: descs,
            max_out_descs: descs,
            data_offset,
            out_split,
            max_tail: out_split,
        }
    })
}

fn name() -> impl Strategy<Value = Name> {
    "[a-z0-9./-]{0,40}".prop_filter_map("segment ..", |text| Name::new(&text).ok())
}

/// Bytes that often begin like something.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let opcodes: Vec<u16> = Opcode::ALL.iter().map(|opcode| *opcode as u16).collect();
    (prop_oneof![4 => select(opcodes), 1 => any::<u16>()], vec(prop_oneof![Just(0u8), any::<u8>()], 0..1400))
        .prop_map(|(opcode, rest)| [opcode.to_le_bytes().as_slice(), &rest].concat())
}

proptest! {
    #[test]
    fn commands(id in any::<u16>(), request in request()) {
        let command = Command { id, request };
        prop_assert_eq!(Command::parse(&command.emit()), Ok(command));
        prop_assert_eq!(Command::id_of(&command.emit()), id);
    }

    #[test]
    fn completions(id in any::<u16>(), opcode in select(Opcode::ALL), status in select(Status::ALL), raw in any::<[u8; 12]>()) {
        let bytes = [&(status as u16).to_le_bytes()[..], &id.to_le_bytes(), &raw].concat();
        if let Ok(completion) = Completion::parse(opcode, &bytes) {
            prop_assert_eq!((completion.id, completion.status), (id, status));
            prop_assert_eq!(Completion::parse(opcode, &completion.emit()), Ok(completion));
        } else {
            prop_assert_eq!(opcode, Opcode::Connect);
        }
    }

    #[test]
    fn bodies_of_connect(initiator in name(), target in name(), words in any::<(u32, u64, u32, u32, u32, u16)>(), session_id in any::<[u8; 16]>(), there in any::<bool>()) {
        let extension = Extension {
            ver_min: 1,
            ver_max: words.5,
            flags: ConnectFlags::from_bits_truncate(words.5),
            kato_ms: words.0,
            features: Features::from_bits_retain(words.1),
            session_id,
            epoch: words.2,
            resume_ms: words.3,
            host_id: session_id,
            max_in_msg: words.4,
            rx_depth: words.5,
            proof: [words.5 as u8; 32],
            nonce: session_id,
        };
        let body = ConnectBody { initiator, target, extension: there.then_some(extension) };
        prop_assert_eq!(ConnectBody::parse(&body.emit()), Ok(body));
    }

    #[test]
    fn replies_of_connect(raw in any::<[u8; 32]>(), rest in any::<[u8; 32]>(), end in any::<[u8; 31]>(), longer in 0usize..9) {
        let head = [0x56, 0x4f, 0x46, 0x58, 96, 0];
        let bytes = [&head[..], &raw[..27], &rest, &end, &vec![0; longer]].concat();
        let reply = ConnectReply::parse(&bytes).unwrap();
        prop_assert_eq!(ConnectReply::parse(&reply.emit()), Ok(reply));
        prop_assert_eq!(&reply.emit()[..91], &bytes[..91]);
    }

    #[test]
    fn vqx_messages(flags in 0u8..8, limits in limits(), lengths in vec(1u32..2000, 0..6), outs in 0usize..6, inline in vec(any::<u8>(), 0..2000), tail in 0u32..70, stream in any::<bool>()) {
        let descs: Vec<Keyed> = lengths.iter().map(|n| Keyed { addr: u64::from(*n).into(), length: (*n).into(), key: 7.into() }).collect();
        let descs = if stream { &[][..] } else { &descs };
        let outs = outs.min(descs.len());
        let sum = |descs: &[Keyed]| descs.iter().map(|d| d.length.get()).sum::<u32>();
        let (ins, outs) = descs.split_at(descs.len() - outs);
        let command = VqxCommand {
            flags: VqxFlags::from_bits_truncate(flags),
            in_descs: ins.len() as u8,
            out_descs: outs.len() as u8,
            turn: 3,
            out_length: sum(outs) + inline.len() as u32,
            in_length: sum(ins) + tail,
        };
        let mut bytes = Vec::new();
        VqxMessage::emit(&mut bytes, 9, &command, descs, &inline, &limits, stream);
        prop_assert_eq!(Command::parse(&bytes).unwrap().request, Request::Vqx(command));
        match VqxMessage::parse(&command, &bytes[HEADER..], &limits, stream) {
            Ok(m) => {
                prop_assert_eq!([m.out_head, m.out_rest].concat(), inline);
                prop_assert_eq!((m.in_descs, m.out_descs, m.tail), (ins, outs, tail));
                prop_assert!(command.out_length + command.in_length <= limits.max_xfer);
            }
            Err(Error::Limit(..)) => {}
            Err(error) => prop_assert_eq!(error, Error::Length("descriptors reach into the data")),
        }
    }

    #[test]
    fn redirects(target in name(), address in "[a-z0-9.:]{1,100}", port in any::<u16>()) {
        let redirect = Redirect { target, address, port };
        let bytes = redirect.emit();
        prop_assert!(Redirect::parse(&bytes[..bytes.len() - 1]).is_err());
        prop_assert_eq!(Redirect::parse(&bytes), Ok(redirect));
    }

    #[test]
    fn events_and_frames(value in any::<u32>(), kind in 0usize..6, words in 6u8..64, flags in 0u8..4) {
        let status = Status::ALL[value as usize % Status::ALL.len()];
        let event = [Event::Keepalive, Event::ConfigChange(value), Event::DeviceStatus(value), Event::Redirect(value), Event::Drain(value), Event::Terminate(status)][kind];
        prop_assert_eq!(Event::parse(&event.emit()), Ok(event));
        let frame = FrameHeader {
            length: 300 + (value >> 12),
            kind: [FrameType::Command, FrameType::Completion][kind % 2],
            flags: FrameFlags::from_bits_truncate(flags),
            header_words: words,
        };
        prop_assert_eq!(FrameHeader::parse(&frame.emit(), 1 << 21), Ok(frame));
    }

    #[test]
    fn private_data(words in any::<(u16, u16, u16, u16, u32)>(), flags in 0u32..8, behind in vec(any::<u8>(), 0..20)) {
        let flags = CmFlags::from_bits_truncate(flags);
        let request = CmRequest { ver_min: words.0, ver_max: words.1, vq: words.2, instance: words.3, sq_size: words.0, rq_size: words.1, max_in_msg: words.4, flags };
        prop_assert_eq!(CmRequest::parse(&[&request.emit()[..], &behind].concat()), Ok(request));
        let reply = CmReply { version: words.0, sq_size: words.1, max_cmd_msg: words.4, flags, rq_size: words.2 };
        prop_assert_eq!(CmReply::parse(&[&reply.emit()[..], &behind].concat()), Ok(reply));
        let reject = CmReject { version: words.0, status: Status::Version, detail: words.4 };
        prop_assert_eq!(CmReject::parse(&[&reject.emit()[..], &behind].concat()), Ok(reject));
        prop_assert_eq!(CmReply::parse(&[0; 196]), Err(Error::Magic));
    }

    /// Any bytes have an answer, and what is accepted says the same when it is emitted again.
    #[test]
    fn noise_is_answered(bytes in noise(), limits in limits(), stream in any::<bool>()) {
        if let Ok(command) = Command::parse(&bytes) {
            prop_assert_eq!(Command::parse(&command.emit()), Ok(command));
            if let Request::Vqx(vqx) = command.request
                && let Ok(message) = VqxMessage::parse(&vqx, &bytes[HEADER..], &limits, stream)
            {
                prop_assert!(message.out_head.len() + message.out_rest.len() <= bytes.len());
            }
        }
        for opcode in Opcode::ALL {
            let _ = Completion::parse(*opcode, &bytes).map(|completion| completion.stream_body());
        }
        if let Ok(event) = Event::parse(&bytes) {
            prop_assert_eq!(Event::parse(&event.emit()), Ok(event));
        }
        let _ = ConnectReply::parse(&bytes);
        let _ = Redirect::parse(&bytes);
        let _ = FrameHeader::parse(&bytes, limits.max_xfer);
        let _ = CmRequest::parse(&bytes);
        let mut body = bytes;
        body.resize(CONNECT_BODY, 0);
        body[512..518].copy_from_slice(&[0x56, 0x4f, 0x46, 0x58, 128, 0]);
        if let Ok(parsed) = ConnectBody::parse(&body) {
            prop_assert_eq!(ConnectBody::parse(&parsed.emit()), Ok(parsed));
        }
    }
}

#[test]
fn every_unknown_opcode_is_refused() {
    let known: Vec<u16> = Opcode::ALL.iter().map(|opcode| *opcode as u16).collect();
    for value in 0..=u16::MAX {
        assert_eq!(Opcode::try_from(value).is_ok(), known.contains(&value));
    }
}

#[test]
fn features_need_their_prerequisites() {
    let all = Features::all();
    assert_eq!(all.consistent(), all);
    assert_eq!(
        all.difference(Features::BASE).consistent(),
        Features::KEYED_NUM_DESCS | Features::KEYED_EAGER_BUF
    );
    assert!(!all.difference(Features::RESUME).consistent().contains(Features::MIGRATE));
    assert!(!all.difference(Features::FRAME).consistent().contains(Features::DIGEST));
}
