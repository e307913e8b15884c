use super::*;
use crate::packet::headers::UDP;

const ETHERNET: usize = 14;

/// An Ethernet frame with TCP over IPv4 (with 4 bytes of IP options) or IPv6 and 12 bytes of TCP options.
fn tcp_packet(version: IpVersion, payload: &[u8]) -> (Vec<u8>, usize) {
    let mut frame = vec![0x52; ETHERNET];
    let tcp_len = 32;
    match version {
        IpVersion::V4 => {
            put(&mut frame, 12, &[0x08, 0x00]);
            frame.extend([0x46, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            frame.extend([1, 1, 1, 0]);
        }
        IpVersion::V6 => {
            put(&mut frame, 12, &[0x86, 0xdd]);
            frame.extend([0x60, 0, 0, 0, 0, 0, TCP, 64]);
            frame.extend((0..32).map(|n| 0x20 + n));
        }
    }
    let tcp = frame.len();
    frame.extend([0x30, 0x39, 0, 80, 0xff, 0xff, 0xff, 0xf0, 1, 2, 3, 4]);
    frame.extend([
        u8::try_from(tcp_len / 4).unwrap() << 4,
        CWR | 0x10 | PSH | FIN,
        0xff,
        0xff,
        0xab,
        0xcd,
        0,
        0,
    ]);
    frame.extend([1; 12]);
    assert_eq!(frame.len(), tcp + tcp_len);
    let header_len = frame.len();
    frame.extend(payload);
    (frame, header_len)
}

fn segments(version: IpVersion, payload: &[u8], mss: usize) -> Vec<Vec<u8>> {
    let (mut frame, header_len) = tcp_packet(version, payload);
    let mut out = Vec::new();
    Segmentation::new(&mut frame, header_len, mss)
        .unwrap()
        .for_each(|header, payload| out.push([header, payload].concat()));
    out
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

fn sequence(frame: &[u8], packet: &IpPacket) -> u32 {
    u32::from_be_bytes(bytes(frame, packet.payload.start + 4))
}

fn check_segments(version: IpVersion, len: usize, mss: usize) {
    let payload = payload(len);
    let frames = segments(version, &payload, mss);
    assert_eq!(frames.len(), len.div_ceil(mss).max(1));
    let mut received: Vec<u8> = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let packet = IpPacket::parse(frame).unwrap();
        assert_eq!(packet.payload.end, frame.len(), "IP length covers the frame");
        assert!(packet.header_checksum_ok(frame) && packet.l4_checksum_ok(frame));
        let expected = 0xffff_fff0u32.wrapping_add(u32::try_from(received.len()).unwrap());
        assert_eq!(sequence(frame, &packet), expected);
        let [flags] = bytes(frame, packet.payload.start + 13);
        let (first, last) = (index == 0, index + 1 == frames.len());
        assert_eq!(flags & CWR != 0, first);
        assert_eq!(flags & (FIN | PSH), if last { FIN | PSH } else { 0 });
        if version == IpVersion::V4 {
            let identification = u16::from_be_bytes(bytes(frame, packet.header.start + 4));
            assert_eq!(identification, 0xffff_u16.wrapping_add(u16::try_from(index).unwrap()));
        }
        received.extend(&frame[packet.payload.start + 32..]);
    }
    assert_eq!(received, payload);
}

#[test]
fn segments_add_up_to_the_packet() {
    for version in [IpVersion::V4, IpVersion::V6] {
        for (len, mss) in
            [(0, 1448), (1, 1448), (1448, 1448), (1449, 1448), (14_480, 1448), (65_000, 8948), (999, 7)]
        {
            check_segments(version, len, mss);
        }
    }
}

#[test]
fn segmentation_is_refused_for_what_it_cannot_cut() {
    let refused = |frame: &mut Vec<u8>, header_len, mss| Segmentation::new(frame, header_len, mss).err();
    let (mut frame, header_len) = tcp_packet(IpVersion::V4, &payload(5000));
    assert_eq!(refused(&mut frame, header_len, 0), Some(OffloadError::SegmentSize));
    assert_eq!(refused(&mut frame, header_len, 1), Some(OffloadError::SegmentSize));
    assert_eq!(refused(&mut frame, header_len - 4, 1000), Some(OffloadError::HeaderLength));
    assert_eq!(refused(&mut frame, 1023, 1000), Some(OffloadError::HeaderLength));
    assert_eq!(refused(&mut frame[..60].to_vec(), header_len, 1000), Some(OffloadError::HeaderLength));
    frame[ETHERNET + 9] = UDP;
    assert_eq!(refused(&mut frame, header_len, 1000), Some(OffloadError::NotTcp));
    assert_eq!(refused(&mut vec![0; 14], 14, 1000), Some(OffloadError::NotTcp));
    assert_eq!(refused(&mut Vec::new(), 0, 1000), Some(OffloadError::NotTcp));
}

#[test]
fn checksum_is_completed_from_the_pseudo_header_sum() {
    for version in [IpVersion::V4, IpVersion::V6] {
        let (mut frame, header_len) = tcp_packet(version, &payload(333));
        patch_total_length(&mut frame);
        let packet = IpPacket::parse(&frame).unwrap();
        let tcp = packet.payload.start;
        let pseudo = !packet.pseudo_header(&frame, header_len - tcp + 333).finish();
        put(&mut frame, tcp + 16, &pseudo.to_be_bytes());
        finish_checksum(&mut frame, tcp, tcp + 16).unwrap();
        assert!(packet.l4_checksum_ok(&frame));
    }
}

#[test]
fn zero_checksum_is_sent_as_its_other_representation() {
    let mut frame = vec![0; 20];
    frame[..4].copy_from_slice(&[0xff, 0xff, 0, 0]);
    finish_checksum(&mut frame, 0, 2).unwrap();
    assert_eq!(frame[2..4], [0xff, 0xff]);
}

#[test]
fn checksum_outside_the_packet_is_refused() {
    let mut frame = vec![0; 60];
    for (start, field) in [(61, 62), (60, 60), (0, 59), (20, 10), (1023, 16383)] {
        assert_eq!(finish_checksum(&mut frame, start, field), Err(OffloadError::ChecksumOutside));
    }
}
