//! Congestion marks, as a router with a long queue sets them (RFC 3168).

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// The two bits of a traffic class that are about congestion; both set is the mark, both clear says that the sender would
/// not understand it.
const ECN: u8 = 0b11;
/// Where an IPv4 header has its checksum.
const CHECKSUM: std::ops::Range<usize> = 10..12;

/// Marks a frame. Returns `false`, and leaves the frame alone, unless it is IP of a sender that understands marks.
pub(super) fn mark(frame: &mut [u8]) -> bool {
    let Some((ethernet, packet)) = frame.split_at_mut_checked(ETHERNET) else { return false };
    match ethernet {
        [.., 0x08, 0x00] => mark_v4(packet),
        [.., 0x86, 0xdd] => mark_v6(packet),
        _ => false,
    }
}

fn mark_v4(packet: &mut [u8]) -> bool {
    let len = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
    let Some(header) = packet.get_mut(..len).filter(|header| header.len() >= 20) else { return false };
    let Some(class) = header.get_mut(1).filter(|class| **class & ECN != 0) else { return false };
    *class |= ECN;
    if let Some(checksum) = header.get_mut(CHECKSUM) {
        checksum.fill(0);
    }
    let words = header.chunks_exact(2);
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    if let Some(place) = header.get_mut(CHECKSUM) {
        place.copy_from_slice(&checksum.to_be_bytes());
    }
    true
}

fn mark_v6(packet: &mut [u8]) -> bool {
    // The traffic class is the second and third half byte.
    let Some(class) = packet.get_mut(1).filter(|class| **class >> 4 & ECN != 0) else { return false };
    *class |= ECN << 4;
    true
}

#[cfg(test)]
mod tests {
    use etherparse::{Ipv4Header, PacketBuilder};

    use super::*;

    fn v4(ecn: u8) -> Vec<u8> {
        let mut ip = Ipv4Header::new(8, 64, etherparse::IpNumber::UDP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
        ip.dscp = 46.try_into().unwrap();
        ip.ecn = ecn.try_into().unwrap();
        let mut frame = vec![];
        let builder =
            PacketBuilder::ethernet2([2; 6], [4; 6]).ip(etherparse::IpHeaders::Ipv4(ip, Default::default()));
        builder.udp(1, 4791).write(&mut frame, &[]).unwrap();
        frame
    }

    fn v6(ecn: u8) -> Vec<u8> {
        let mut frame = vec![];
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 64);
        builder.udp(1, 4791).write(&mut frame, &[7]).unwrap();
        frame[ETHERNET + 1] |= ecn << 4;
        frame
    }

    #[test]
    fn packets_of_those_who_understand_are_marked_and_nothing_else_changes() {
        for ecn in [1, 2, 3] {
            let mut frame = v4(ecn);
            assert!(mark(&mut frame));
            // With the right checksum, which the builder computes.
            assert_eq!(frame, v4(3));
            let mut frame = v6(ecn);
            assert!(mark(&mut frame));
            assert_eq!(frame, v6(3));
        }
    }

    #[test]
    fn all_other_frames_are_left_alone() {
        let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0xff; 28]].concat();
        let cut = v4(2)[..ETHERNET + 12].to_vec();
        for frame in [v4(0), v6(0), arp, cut, vec![], vec![0x08; ETHERNET]] {
            let mut marked = frame.clone();
            assert!(!mark(&mut marked));
            assert_eq!(marked, frame);
        }
    }
}
