//! `key=value,key=value` flags, read into the same serde types as the configuration file.
//!
//! A value may be quoted (`path="a,b"`), a key alone means `key=on`, and a first word that is not a key of the option
//! is the value of its [main key](Keyed::MAIN_KEY): `--disk root.img,readonly` is `--disk path=root.img,readonly=on`.

use std::fmt;

use serde::de::value::MapDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// An option that is written as `key=value,…`.
pub trait Keyed: DeserializeOwned {
    /// The key whose name may be left out in the first place.
    const MAIN_KEY: &'static str;
}

/// Why a flag's value was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValueError(String);

impl fmt::Display for KeyValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for KeyValueError {}

impl serde::de::Error for KeyValueError {
    fn custom<T: fmt::Display>(msg: T) -> Self {
        Self(msg.to_string())
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self(format!("unknown key `{field}`; the keys are {}", expected.join(", ")))
    }

    fn missing_field(field: &'static str) -> Self {
        Self(format!("the key `{field}` is missing"))
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self(format!("the key `{field}` is given twice"))
    }
}

/// Reads one flag's value.
///
/// # Errors
///
/// [`KeyValueError`] names the key and what was expected of it.
pub fn parse<T: Keyed>(text: &str) -> Result<T, KeyValueError> {
    let mut pairs = Vec::new();
    for (index, word) in split(text)?.into_iter().enumerate() {
        let pair = match word.split_once('=') {
            Some((key, value)) if is_key(key) => (key.to_owned(), Value::new(key, value)),
            _ if index == 0 => (T::MAIN_KEY.to_owned(), Value::new(T::MAIN_KEY, &word)),
            _ => (word.clone(), Value::new(&word, "on")),
        };
        pairs.push(pair);
    }
    T::deserialize(MapDeserializer::new(pairs.into_iter()))
}

fn is_key(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
}

/// Splits at commas outside double quotes, and drops the quotes.
fn split(text: &str) -> Result<Vec<String>, KeyValueError> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => words.push(String::new()),
            _ => words.last_mut().expect("starts with one word").push(c),
        }
    }
    if quoted {
        return Err(KeyValueError::custom("a quote is not closed"));
    }
    if words.iter().any(String::is_empty) {
        return Err(KeyValueError::custom("a word between commas is empty"));
    }
    Ok(words)
}

/// The text of one value, read as whatever type the option wants.
struct Value {
    key: String,
    text: String,
}

impl Value {
    fn new(key: &str, text: &str) -> Self {
        Self { key: key.to_owned(), text: text.to_owned() }
    }

    fn bad(&self, expected: &str) -> KeyValueError {
        KeyValueError(format!("`{}={}` is not {expected}", self.key, self.text))
    }
}

impl IntoDeserializer<'_, KeyValueError> for Value {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! parse_number {
    ($($method:ident $visit:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyValueError> {
            let number = self.text.parse().map_err(|_| self.bad("a whole number in range"))?;
            visitor.$visit(number)
        }
    )*};
}

impl<'de> Deserializer<'de> for Value {
    type Error = KeyValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyValueError> {
        let Self { key, text } = self;
        visitor.visit_string(text).map_err(|KeyValueError(why)| KeyValueError(format!("`{key}`: {why}")))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyValueError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, KeyValueError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, KeyValueError> {
        if !variants.contains(&self.text.as_str()) {
            return Err(self.bad(&format!("one of {}", variants.join(", "))));
        }
        visitor.visit_enum(self.text.into_deserializer())
    }

    parse_number! {
        deserialize_u8 visit_u8
        deserialize_u16 visit_u16
        deserialize_u32 visit_u32
        deserialize_u64 visit_u64
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, rename_all = "lowercase")]
    enum Kind {
        Raw,
        Null,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        path: PathBuf,
        #[serde(default, deserialize_with = "crate::config::values::on_off")]
        readonly: bool,
        mtu: Option<u16>,
        kind: Option<Kind>,
    }

    impl Keyed for Sample {
        const MAIN_KEY: &'static str = "path";
    }

    #[test]
    fn every_form_of_value_is_read() {
        let sample: Sample = parse("\"a,b=c.img\",readonly,mtu=9000,kind=raw").unwrap();
        let expected =
            Sample { path: "a,b=c.img".into(), readonly: true, mtu: Some(9000), kind: Some(Kind::Raw) };
        assert_eq!(sample, expected);
        assert!(!parse::<Sample>("path=x,readonly=off").unwrap().readonly);
    }

    #[test]
    fn errors_name_the_key_and_what_was_expected() {
        let text = |flag: &str| parse::<Sample>(flag).unwrap_err().to_string();
        assert_eq!(text("x,mtu=abc"), "`mtu=abc` is not a whole number in range");
        assert_eq!(text("x,mtu=65536"), "`mtu=65536` is not a whole number in range");
        assert_eq!(text("x,kind=zip"), "`kind=zip` is not one of raw, null");
        assert_eq!(text("x,readonly=maybe"), "`readonly`: `maybe` is neither on nor off");
        assert_eq!(text("x,size=3"), "unknown key `size`; the keys are path, readonly, mtu, kind");
        assert_eq!(text("mtu=3"), "the key `path` is missing");
        assert_eq!(text("x,path=y"), "the key `path` is given twice");
        assert_eq!(text("x,,mtu=3"), "a word between commas is empty");
        assert_eq!(text("path=\"x"), "a quote is not closed");
    }
}
