//! What the first bytes of a frame say, where an evasive sender is to be expected.

use etherparse::err::Layer;
use etherparse::{
    IpNumber, Ipv6ExtensionSlice, LaxIpPayloadSlice, LaxIpv6Slice, LaxNetSlice, LaxSlicedPacket,
    TransportSlice,
};

/// First bytes of a frame that are enough for [`LaxSlicedPacket`] to reach the headers looked at here: Ethernet, three
/// tags, IPv6 with a usual amount of extension headers, UDP or neighbour discovery with its options.
pub(crate) const HEAD: usize = 256;

/// Whether the headers of an IPv6 packet do not end within the bytes at hand or make no sense, so that what follows them
/// stays hidden.
pub(crate) fn is_hidden(packet: &LaxSlicedPacket<'_>) -> bool {
    matches!(
        &packet.stop_err,
        Some((
            _,
            Layer::Ipv6Header
                | Layer::Ipv6Packet
                | Layer::IpAuthHeader
                | Layer::Ipv6ExtHeader
                | Layer::Ipv6HopByHopHeader
                | Layer::Ipv6DestOptionsHeader
                | Layer::Ipv6RouteHeader
                | Layer::Ipv6FragHeader
                | Layer::Icmpv6
        ))
    )
}

/// UDP destination port of a packet, or of the packet that is started by a fragment.
pub(crate) fn udp_destination(packet: &LaxSlicedPacket<'_>) -> Option<u16> {
    if let Some(TransportSlice::Udp(udp)) = &packet.transport {
        return Some(udp.destination_port());
    }
    let payload = match packet.net.as_ref()? {
        LaxNetSlice::Ipv4(ip) if ip.header().fragments_offset().value() == 0 => ip.payload(),
        LaxNetSlice::Ipv6(ip) if fragment_offset(ip) == 0 => ip.payload(),
        _ => return None,
    };
    destination_port(payload)
}

fn destination_port(payload: &LaxIpPayloadSlice<'_>) -> Option<u16> {
    // Fragments are cut at multiples of eight bytes, so the first one holds the whole UDP header.
    let [_, _, high, low] = payload.payload.first_chunk::<4>()?;
    (payload.ip_number == IpNumber::UDP).then(|| u16::from_be_bytes([*high, *low]))
}

fn fragment_offset(ip: &LaxIpv6Slice<'_>) -> u16 {
    let fragment = ip.extensions().clone().into_iter().find_map(|header| match header {
        Ipv6ExtensionSlice::Fragment(fragment) => Some(fragment.fragment_offset().value()),
        _ => None,
    });
    fragment.unwrap_or(0)
}
