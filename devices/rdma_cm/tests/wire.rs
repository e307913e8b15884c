//! The bytes of messages.

use std::net::IpAddr;

use proptest::prelude::*;
use rdma_cm::wire::{Ids, IpHeader, MAD, Message, MoreTime, Reason, Reject, Reply, Request};
use rdma_cm::{tcp_port, tcp_service};
use verbs::{Gid, Mtu, Qpn};

fn request() -> Request {
    let src: IpAddr = "10.0.0.1".parse().unwrap();
    let dst: IpAddr = "10.0.0.2".parse().unwrap();
    Request {
        comm_id: 0x0102_0304,
        service_id: tcp_service(7174),
        ca_guid: 0x1122_3344_5566_7788,
        qpn: Qpn(0xabcdef),
        responder_resources: 16,
        initiator_depth: 4,
        remote_response_timeout: 18,
        psn: 0x123456,
        local_response_timeout: 19,
        retry_count: 7,
        rnr_retry_count: 6,
        mtu: Mtu::B1024,
        max_cm_retries: 15,
        srq: true,
        local_gid: Gid::from("10.0.0.1".parse::<std::net::Ipv4Addr>().unwrap()),
        remote_gid: Gid::from("10.0.0.2".parse::<std::net::Ipv4Addr>().unwrap()),
        hop_limit: 64,
        ack_timeout: 14,
        private: IpHeader { port: 0x9876, src, dst }.emit(b"hello"),
    }
}

/// Offsets are those of IBTA volume 1, tables 99 and 105, and annex A11.
#[test]
fn fields_are_where_the_standard_has_them() {
    let mad = Message::Request(request()).emit(0x55);
    assert_eq!(mad[..4], [1, 7, 2, 3]);
    assert_eq!(mad[8..18], [0, 0, 0, 0, 0, 0, 0, 0x55, 0, 0x10]);
    let body = &mad[24..];
    assert_eq!(body[..4], [1, 2, 3, 4]);
    assert_eq!(body[8..16], [0, 0, 0, 0, 1, 6, 0x1c, 6]);
    assert_eq!(body[32..36], [0xab, 0xcd, 0xef, 16]);
    assert_eq!(body[39], 4);
    assert_eq!(body[43], 18 << 3 | 1);
    assert_eq!(body[44..48], [0x12, 0x34, 0x56, 19 << 3 | 7]);
    assert_eq!(body[48..52], [0xff, 0xff, 0x36, 0xf8]);
    assert_eq!(body[66..72], [0xff, 0xff, 10, 0, 0, 1]);
    assert_eq!(body[95], 14 << 3);
    let private = &body[140..];
    assert_eq!(private[..4], [0, 0x40, 0x98, 0x76]);
    assert_eq!(private[16..20], [10, 0, 0, 1]);
    assert_eq!(private[32..41], *b"\x0a\0\0\x02hello");

    let ids = Ids { local: 1, remote: 2 };
    let mad = Message::Disconnect(ids, Qpn(0x10203)).emit(1);
    assert_eq!(mad[16..36], [0, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 0]);
}

#[test]
fn services_are_ports() {
    assert_eq!(tcp_port(tcp_service(8549)), Some(8549));
    assert_eq!(tcp_port(0x0111 << 16 | 1), None);
}

fn ids() -> impl Strategy<Value = Ids> {
    any::<(u32, u32)>().prop_map(|(local, remote)| Ids { local, remote })
}

fn message() -> impl Strategy<Value = Message> {
    let reject = (ids(), any::<bool>(), any::<u16>()).prop_map(|(ids, of_reply, reason)| {
        Message::Reject(Reject { ids, of_reply, reason: Reason(reason), private: [7; 148] })
    });
    let reply = (ids(), 0..1_u32 << 24, 0..1_u32 << 24, any::<[u8; 2]>(), 0..8_u8, any::<bool>());
    let reply = reply.prop_map(|(ids, qpn, psn, [responder_resources, initiator_depth], rnr, srq)| {
        let qpn = Qpn(qpn);
        let private = [9; 196];
        let (ack_delay, rnr_retry_count, ca_guid) = (rnr, rnr, u64::from(psn));
        Message::Reply(Reply {
            ids,
            qpn,
            psn,
            responder_resources,
            initiator_depth,
            ack_delay,
            rnr_retry_count,
            srq,
            ca_guid,
            private,
        })
    });
    prop_oneof![
        (any::<u32>(), any::<u64>()).prop_map(|(comm_id, service_id)| Message::Request(Request {
            comm_id,
            service_id,
            ..request()
        })),
        (ids(), any::<bool>(), 0..32_u8).prop_map(|(ids, of_reply, service_timeout)| Message::MoreTime(
            MoreTime { ids, of_reply, service_timeout }
        )),
        reject,
        reply,
        ids().prop_map(Message::ReadyToUse),
        (ids(), 0..1_u32 << 24).prop_map(|(ids, qpn)| Message::Disconnect(ids, Qpn(qpn))),
        ids().prop_map(Message::Disconnected),
    ]
}

proptest! {
    #[test]
    fn what_is_sent_is_understood(message in message(), tid: u64) {
        prop_assert_eq!(Message::parse(&message.emit(tid)), Ok((tid, message)));
    }

    #[test]
    fn any_bytes_are_parsed_without_panic(head in any::<[u8; 24]>(), attr in 0x10..0x18_u8, mut mad in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Message::parse(&mad);
        if mad.len() >= 24 {
            mad[..24].copy_from_slice(&head);
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&[0, attr]);
            mad.resize(MAD, 0);
            if let Ok((_, Message::Request(request))) = Message::parse(&mad) {
                let _ = IpHeader::parse(&request.private);
            }
        }
    }

    #[test]
    fn addresses_survive(src: [u8; 16], dst: [u8; 16], port: u16, v4: bool) {
        let address = |bytes: [u8; 16]| match v4 {
            true => IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
            false => IpAddr::from(bytes),
        };
        let header = IpHeader { port, src: address(src), dst: address(dst) };
        let private = header.emit(&[5; 100]);
        prop_assert_eq!(IpHeader::parse(&private), Some((header, &[5; 56])));
    }
}
