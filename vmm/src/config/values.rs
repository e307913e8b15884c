//! Values that flags and the configuration file share: sizes, switches, and whatever reads itself from text.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A number of bytes: `1073741824`, `1024M` or `1G`, in powers of two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || format!("`{s}` is not a size like 512M or 2G");
        let digits = s.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match s[digits.len()..].to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            "T" | "TB" | "TIB" => 40,
            _ => return Err(bad()),
        };
        let number: u64 = digits.parse().map_err(|_| bad())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shift, unit) = [(40, "T"), (30, "G"), (20, "M"), (10, "K")]
            .into_iter()
            .find(|(shift, _)| self.0 != 0 && self.0.trailing_zeros() >= *shift)
            .unwrap_or((0, ""));
        write!(f, "{}{unit}", self.0 >> shift)
    }
}

impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes or a size like \"2G\"")
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes).map(ByteSize).map_err(|_| E::custom("a size is not negative"))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

/// Reads a switch: `on` or `off` in a flag, also `true` or `false` in the configuration file.
///
/// # Errors
///
/// Any other value.
pub fn on_off<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    struct SwitchVisitor;
    impl Visitor<'_> for SwitchVisitor {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("on or off")
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
            parse_on_off(text).map_err(E::custom)
        }
    }
    deserializer.deserialize_any(SwitchVisitor)
}

/// [`on_off`] for an option that may be absent.
///
/// # Errors
///
/// As [`on_off`].
pub fn optional_on_off<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    on_off(deserializer).map(Some)
}

/// Reads a switch from a flag's text.
///
/// # Errors
///
/// A text that is not `on`, `off`, `true` or `false`.
pub fn parse_on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(format!("`{text}` is neither on nor off")),
    }
}

/// Reads a value that knows its own text form.
///
/// # Errors
///
/// What the type's [`FromStr`] says.
pub fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    struct TextVisitor<T>(PhantomData<T>);
    impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for TextVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_str(TextVisitor(PhantomData))
}

/// [`from_text`] for an option that may be absent.
///
/// # Errors
///
/// As [`from_text`].
pub fn optional_from_text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    from_text(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown_in_their_largest_unit() {
        for (text, bytes, shown) in [
            ("1G", 1 << 30, "1G"),
            ("1536m", 1536 << 20, "1536M"),
            ("4096", 4096, "4K"),
            ("0", 0, "0"),
            ("2TiB", 2 << 40, "2T"),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size.0, bytes);
            assert_eq!(size.to_string(), shown);
        }
    }

    #[test]
    fn sizes_that_are_none_are_refused() {
        for text in ["", "G", "1X", "-1", "1.5G", "99999999T", "é"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
