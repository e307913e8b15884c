//! The text of an impairment.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A share of all frames, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ratio(u32);

impl Ratio {
    const WHOLE: u32 = 1_000_000;
    const PER_PERCENT: u32 = 10_000;

    /// So many millionths; the whole at most.
    pub fn per_million(n: u32) -> Self {
        Self(n.min(Self::WHOLE))
    }

    /// So many percent; 100 at most.
    pub fn percent(n: u32) -> Self {
        Self::per_million(n.saturating_mul(Self::PER_PERCENT))
    }

    /// The share in millionths.
    pub const fn as_per_million(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / Self::PER_PERCENT, self.0 % Self::PER_PERCENT);
        if part == 0 {
            return write!(f, "{whole}%");
        }
        let digits = format!("{part:04}");
        write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
    }
}

impl FromStr for Ratio {
    type Err = ParseImpairmentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseImpairmentError::Ratio(text.into());
        let number = text.strip_suffix('%').ok_or_else(bad)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(part) || whole.len() > 3 || part.len() > 4 {
            return Err(bad());
        }
        let whole: u32 = whole.parse().map_err(|_| bad())?;
        let part: u32 = format!("{part:0<4}").parse().map_err(|_| bad())?;
        let millionths = whole * Self::PER_PERCENT + part;
        if millionths > Self::WHOLE { Err(bad()) } else { Ok(Self(millionths)) }
    }
}

/// What is done to the frames of one direction.
///
/// As text, any of these separated by slashes: `loss:1%`, `duplicate:0.5%`, `reorder:5%`, `corrupt:0.01%`,
/// `mark:10%`, `delay:10ms`, `jitter:2ms`, `seed:42`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Frames that vanish.
    pub loss: Ratio,
    /// Frames that arrive twice.
    pub duplicate: Ratio,
    /// Frames that up to three later ones overtake.
    pub reorder: Ratio,
    /// Frames that arrive with one bit changed.
    pub corrupt: Ratio,
    /// Frames that arrive with a congestion mark, of those whose senders understand it (ECN).
    pub mark: Ratio,
    /// How much later each frame arrives.
    pub delay: Duration,
    /// By how much the delay varies, up or down. Frames keep their order; only `reorder` changes it.
    pub jitter: Duration,
    /// Where the random numbers start.
    pub seed: u64,
}

impl Impairment {
    /// Longest delay and jitter: more than any retry budget, and little enough to bound what is held.
    pub const MAX_DELAY: Duration = Duration::from_secs(60);
}

/// A text that is no impairment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseImpairmentError {
    /// Not `name:value` with a known name.
    #[error(
        "`{0}` is not an impairment: use loss, duplicate, reorder, corrupt or mark with a percentage, delay or jitter with a time, or seed with a number, as in loss:1%/delay:10ms"
    )]
    Item(String),
    /// The same name twice.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// Not a percentage.
    #[error("`{0}` is not a percentage from 0% to 100% with at most four digits after the point")]
    Ratio(String),
    /// Not a time.
    #[error("`{0}` is not a time up to 60 s in whole s, ms, us or ns, as in 10ms")]
    Time(String),
    /// Not a number.
    #[error("`{0}` is not a seed: use a number below 2^64")]
    Seed(String),
}

impl FromStr for Impairment {
    type Err = ParseImpairmentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut impairment = Self::default();
        let mut seen = Vec::new();
        for item in text.split('/') {
            let unknown = || ParseImpairmentError::Item(item.into());
            let (name, value) = item.split_once(':').ok_or_else(unknown)?;
            match name {
                "loss" => impairment.loss = value.parse()?,
                "duplicate" => impairment.duplicate = value.parse()?,
                "reorder" => impairment.reorder = value.parse()?,
                "corrupt" => impairment.corrupt = value.parse()?,
                "mark" => impairment.mark = value.parse()?,
                "delay" => impairment.delay = parse_time(value)?,
                "jitter" => impairment.jitter = parse_time(value)?,
                "seed" => {
                    impairment.seed = value.parse().map_err(|_| ParseImpairmentError::Seed(value.into()))?
                }
                _ => return Err(unknown()),
            }
            if seen.contains(&name) {
                return Err(ParseImpairmentError::Twice(name.into()));
            }
            seen.push(name);
        }
        Ok(impairment)
    }
}

fn parse_time(text: &str) -> Result<Duration, ParseImpairmentError> {
    let bad = || ParseImpairmentError::Time(text.into());
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let time = match unit {
        "s" => Duration::from_secs(number),
        "ms" => Duration::from_millis(number),
        "us" => Duration::from_micros(number),
        "ns" => Duration::from_nanos(number),
        _ => return Err(bad()),
    };
    if time > Impairment::MAX_DELAY { Err(bad()) } else { Ok(time) }
}

/// Prints what [`Impairment::from_str`] reads.
impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratios = [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
            ("mark", self.mark),
        ];
        for (name, ratio) in ratios.into_iter().filter(|(_, ratio)| *ratio != Ratio::default()) {
            write!(f, "{name}:{ratio}/")?;
        }
        for (name, time) in [("delay", self.delay), ("jitter", self.jitter)] {
            if !time.is_zero() {
                write!(f, "{name}:{}ns/", time.as_nanos())?;
            }
        }
        write!(f, "seed:{}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn documented_text_is_understood() {
        let text = "loss:1%/duplicate:0.5%/reorder:5%/corrupt:0.01%/mark:10%/delay:10ms/jitter:2ms/seed:42";
        let impairment = Impairment {
            loss: Ratio::percent(1),
            duplicate: Ratio::per_million(5_000),
            reorder: Ratio::percent(5),
            corrupt: Ratio::per_million(100),
            mark: Ratio::percent(10),
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(2),
            seed: 42,
        };
        assert_eq!(text.parse(), Ok(impairment));
    }

    #[test]
    fn mistakes_are_named() {
        use ParseImpairmentError as E;
        let error = |text: &str| text.parse::<Impairment>().unwrap_err();
        assert_eq!(error(""), E::Item(String::new()));
        assert_eq!(error("los:1%"), E::Item("los:1%".into()));
        assert_eq!(error("loss:1%/loss:2%"), E::Twice("loss".into()));
        for bad in ["1", "%", "101%", "100.0001%", "-1%", "1.%", ".5%", "1.00001%", "+1%", "9999%"] {
            assert_eq!(error(&format!("loss:{bad}")), E::Ratio(bad.into()));
        }
        for bad in ["10", "ms", "1.5ms", "-1ms", "61s", "1min", "99999999999999999999s"] {
            assert_eq!(error(&format!("delay:{bad}")), E::Time(bad.into()));
        }
        assert_eq!(error("seed:x"), E::Seed("x".into()));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in "(loss:|delay:|seed:)?[ -~é]{0,40}(/[ -~]{0,20})?") {
            let _ = text.parse::<Impairment>();
        }

        #[test]
        fn what_is_printed_is_understood(
            ratios: [u32; 5],
            times in (0..60_000_000_000_u64, 0..60_000_000_000_u64),
            seed: u64,
        ) {
            let [loss, duplicate, reorder, corrupt, mark] = ratios.map(|n| Ratio::per_million(n % 1_000_001));
            let (delay, jitter) = (Duration::from_nanos(times.0), Duration::from_nanos(times.1));
            let impairment = Impairment { loss, duplicate, reorder, corrupt, mark, delay, jitter, seed };
            prop_assert_eq!(impairment.to_string().parse(), Ok(impairment));
        }
    }
}
