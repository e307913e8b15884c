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

/// Reads the last bandwidth row of a perftest program.
pub fn bandwidth(output: &str) -> Option<Bandwidth> {
    output.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace();
        let row = Bandwidth {
            bytes: words.next()?.parse().ok()?,
            iterations: words.next()?.parse().ok()?,
            average: words.nth(1)?.parse().ok()?,
        };
        // The message rate closes the row; a line of other numbers has none.
        words.next()?.parse::<f64>().ok()?;
        words.next().is_none().then_some(row)
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
