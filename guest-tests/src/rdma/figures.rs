//! What the verbs programs print, read back as figures.
//!
//! Units are those of the programs: perftest's MB is 2^20 bytes.

/// A bandwidth row of perftest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// Message size in bytes.
    pub bytes: u64,
    /// Number of messages.
    pub iterations: u64,
    /// Average, in MiB a second.
    pub average: f64,
    /// Messages a second.
    pub rate: f64,
}

/// The result of a ping-pong program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Round trips.
    pub iterations: u64,
    /// Microseconds a round trip.
    pub microseconds: f64,
}

/// What `ibv_devinfo` says about a device with one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name of the device.
    pub name: String,
    /// Node GUID as printed, `0200:00ff:fe00:0001`.
    pub node_guid: String,
    /// State of the port, `PORT_ACTIVE`.
    pub state: String,
    /// Active path MTU in bytes.
    pub active_mtu: u32,
    /// Link layer, `Ethernet`.
    pub link_layer: String,
}

/// The last line of `verbena-verify`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifierReport {
    /// What was verified.
    pub operation: String,
    /// Messages that this side checked.
    pub messages: u64,
    /// Bytes that this side checked.
    pub bytes: u64,
    /// How many of them were wrong.
    pub errors: u64,
}

/// Reads the last bandwidth row of a perftest program: size, iterations, peak, average, millions of messages a second.
pub fn bandwidth(output: &str) -> Option<Bandwidth> {
    output.lines().rev().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [bytes, iterations, _peak, average, rate] = words[..] else { return None };
        Some(Bandwidth {
            bytes: bytes.parse().ok()?,
            iterations: iterations.parse().ok()?,
            average: average.parse().ok()?,
            rate: rate.parse::<f64>().ok()? * 1e6,
        })
    })
}

/// Reads the result of `ibv_rc_pingpong` and its relatives: `1000 iters in 0.23 seconds = 232.29 usec/iter`.
pub fn pingpong(output: &str) -> Option<Latency> {
    output.lines().rev().find_map(|line| {
        let (before, after) = line.split_once(" iters in ")?;
        let (_, microseconds) = after.strip_suffix(" usec/iter")?.split_once(" = ")?;
        Some(Latency { iterations: before.trim().parse().ok()?, microseconds: microseconds.parse().ok()? })
    })
}

/// How many pings `rping -v` shows.
pub fn ping_lines(output: &str) -> usize {
    output.lines().filter(|line| line.starts_with("ping data: ")).count()
}

/// Reads `ibv_devinfo` for a single device.
pub fn device_info(output: &str) -> Option<DeviceInfo> {
    let field = |name: &str| {
        let mut lines = output.lines().filter_map(|line| line.trim().split_once(':'));
        lines.find_map(|(key, value)| (key == name).then(|| value.trim().to_string()))
    };
    let first_word = |text: String| text.split_whitespace().next().map(str::to_string);
    Some(DeviceInfo {
        name: field("hca_id")?,
        node_guid: field("node_guid")?,
        state: first_word(field("state")?)?,
        active_mtu: first_word(field("active_mtu")?)?.parse().ok()?,
        link_layer: field("link_layer")?,
    })
}

/// Reads the last report line of `verbena-verify`: `VERIFY op=send messages=200 bytes=13107200 errors=0`.
pub fn verifier(output: &str) -> Option<VerifierReport> {
    let line = output.lines().rev().find_map(|line| line.strip_prefix("VERIFY "))?;
    let field = |name: &str| {
        let mut fields = line.split_whitespace().filter_map(|word| word.split_once('='));
        fields.find_map(|(key, value)| (key == name).then_some(value))
    };
    Some(VerifierReport {
        operation: field("op")?.into(),
        messages: field("messages")?.parse().ok()?,
        bytes: field("bytes")?.parse().ok()?,
        errors: field("errors")?.parse().ok()?,
    })
}

/// Outputs below were recorded from the programs of Debian 12 in two guests with rdma_rxe.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_rows_of_perftest_are_read() {
        let row = bandwidth(include_str!("recorded/ib_send_bw.txt")).unwrap();
        assert_eq!(row, Bandwidth { bytes: 65_536, iterations: 50, average: 0.07, rate: 1.0 });
        let row = bandwidth(include_str!("recorded/ib_atomic_bw.txt")).unwrap();
        assert_eq!((row.bytes, row.iterations, row.rate.round()), (8, 50, 118.0));
        assert_eq!(bandwidth(include_str!("recorded/ibv_rc_pingpong.txt")), None);
    }

    #[test]
    fn result_of_a_pingpong_is_read() {
        let latency = pingpong(include_str!("recorded/ibv_rc_pingpong.txt")).unwrap();
        assert_eq!(latency, Latency { iterations: 100, microseconds: 435_646.0 });
        assert_eq!(pingpong("100 iters in 43.56 seconds"), None);
    }

    #[test]
    fn pings_are_counted() {
        assert_eq!(ping_lines(include_str!("recorded/rping.txt")), 5);
        assert_eq!(ping_lines("server ping data: rdma-ping-0\n"), 0);
    }

    #[test]
    fn device_info_is_read() {
        let info = device_info(include_str!("recorded/ibv_devinfo.txt")).unwrap();
        let expected = DeviceInfo {
            name: "rxe0".into(),
            node_guid: "0000:00ff:fe00:0001".into(),
            state: "PORT_ACTIVE".into(),
            active_mtu: 1024,
            link_layer: "Ethernet".into(),
        };
        assert_eq!(info, expected);
        assert_eq!(device_info("No IB devices found"), None);
    }

    #[test]
    fn report_of_the_verifier_is_its_last_line() {
        let text = "WRONG op=read: Message 3 is wrong from byte 0 of 8\nVERIFY op=read messages=40 bytes=320 errors=1\n";
        let report = verifier(text).unwrap();
        assert_eq!(
            (report.operation.as_str(), report.messages, report.bytes, report.errors),
            ("read", 40, 320, 1)
        );
        assert_eq!(verifier("VERIFY op=read"), None);
    }
}
