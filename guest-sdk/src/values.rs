//! Deserialization of settings and parameters: a flat map of texts, read by serde as a struct.
//!
//! The type tells the deserializer what it expects, so a text is parsed as a number or a list only where the
//! type has one. A key with a dot belongs to the field before the dot, which is a map or another struct.

use std::{fmt, str::FromStr};

use serde::{
    de::{
        self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, Expected, MapAccess,
        SeqAccess, Unexpected, VariantAccess, Visitor,
        value::{BorrowedStrDeserializer, StrDeserializer},
    },
    forward_to_deserialize_any,
};

use crate::{ErrorKind, Finality, KeyValues, Result, StorageError};

/// Name of a key in messages, and the kind of errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyKind {
    name: &'static str,
    error_kind: ErrorKind,
}

impl KeyKind {
    pub(crate) const PARAMETER: Self = Self { name: "parameter", error_kind: ErrorKind::InvalidArgument };
    pub(crate) const MUTABLE_PARAMETER: Self =
        Self { name: "mutable parameter", error_kind: ErrorKind::InvalidArgument };
    pub(crate) const SETTING: Self = Self { name: "setting", error_kind: ErrorKind::FailedPrecondition };

    pub(crate) fn missing(self, key: &str) -> StorageError {
        self.error(format!("the {} {key:?} is missing", self.name))
    }

    pub(crate) fn invalid_value(self, key: &str, text: &str, expected: &str) -> StorageError {
        self.error(format!("the {} {key:?} is {text:?}; expected {expected}", self.name))
    }

    /// `known` is sorted.
    pub(crate) fn unknown<'a>(
        self,
        key: &str,
        known: impl ExactSizeIterator<Item = &'a str>,
    ) -> StorageError {
        let known = match known.len() {
            0 => "there is none".to_owned(),
            1 => format!("known is {}", list(known, "and")),
            _ => format!("known are {}", list(known, "and")),
        };
        self.error(format!("unknown {} {key:?}; {known}", self.name))
    }

    fn error(self, message: String) -> StorageError {
        StorageError::new(self.error_kind, Finality::Final, message).final_unless_changed()
    }
}

/// A list of quoted words for a sentence.
pub(crate) fn list<'a>(items: impl Iterator<Item = &'a str>, last: &str) -> String {
    let mut items: Vec<String> = items.map(|item| format!("{item:?}")).collect();
    match items.pop() {
        Some(end) if items.is_empty() => end,
        Some(end) => format!("{} {last} {end}", items.join(", ")),
        None => "nothing".to_owned(),
    }
}

/// Reads pairs as a `T`.
pub(crate) fn from_pairs<T: DeserializeOwned>(kind: KeyKind, pairs: KeyValues) -> Result<T> {
    let pairs = pairs.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
    T::deserialize(Table { path: String::new(), pairs }).map_err(|error| match error {
        ValueError::Missing(key) => kind.missing(&key),
        ValueError::MissingField(field) => kind.missing(field),
        ValueError::Unknown { key, known } => kind.unknown(&key, known.iter().map(String::as_str)),
        ValueError::Invalid { key, text, expected } => kind.invalid_value(&key, &text, &expected),
        ValueError::Unreadable { key, text, reason } => {
            kind.error(format!("the {} {key:?} is {text:?}: {reason}", kind.name))
        }
        // The remaining errors are those of the type as a whole.
        ValueError::Expected(expected) => kind.error(format!("the {}s are not {expected}", kind.name)),
        ValueError::Custom(reason) => kind.error(format!("the {}s are not valid: {reason}", kind.name)),
        ValueError::KeyBelowText(key) => kind.unknown(&key, [].into_iter()),
        ValueError::Flattened(name) => kind.error(format!(
            "the {}s cannot be read: {name} has a field with the attribute `flatten`, which is not supported",
            kind.name
        )),
    })
}

/// Why pairs cannot be read.
#[derive(Debug)]
enum ValueError {
    /// This key is missing.
    Missing(String),
    /// This field of the struct being read is missing.
    MissingField(&'static str),
    /// No field has this key.
    Unknown { key: String, known: Vec<String> },
    /// The text of a key has another form.
    Invalid { key: String, text: String, expected: String },
    /// The type of a key rejects its text.
    Unreadable { key: String, text: String, reason: String },
    /// The text being read has another form.
    Expected(String),
    /// The type of the text being read rejects it.
    Custom(String),
    /// This key of the struct being read is below a field that is neither a map nor a struct.
    KeyBelowText(String),
    /// This struct has a field with the attribute `flatten`.
    Flattened(String),
}

impl ValueError {
    /// The same error, of the text of a key.
    fn of_value(self, key: &str, text: &str) -> Self {
        let (key, text) = (key.to_owned(), text.to_owned());
        match self {
            Self::Expected(expected) => Self::Invalid { key, text, expected },
            Self::Custom(reason) => Self::Unreadable { key, text, reason },
            other @ (Self::Missing(_)
            | Self::MissingField(_)
            | Self::Unknown { .. }
            | Self::Invalid { .. }
            | Self::Unreadable { .. }
            | Self::KeyBelowText(_)
            | Self::Flattened(_)) => other,
        }
    }
}

/// Serde requires a message; [`from_pairs`] writes the one that callers see.
impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl std::error::Error for ValueError {}

impl de::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Custom(message.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::Expected(expected.to_string())
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::Expected(expected.to_string())
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::Expected(expected.to_string())
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::Expected(list(expected.iter().copied(), "or"))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::MissingField(field)
    }
}

/// A struct's keys and texts.
struct Table<'de> {
    /// Prefix of the keys, such as `array.`; empty for the outermost struct.
    path: String,
    pairs: Vec<(&'de str, &'de str)>,
}

impl<'de> Table<'de> {
    /// The values of the fields that have any.
    fn into_values(self, fields: &'static [&'static str]) -> Result<Vec<Value<'de>>, ValueError> {
        let mut values = Vec::<Value<'de>>::new();
        let mut unknown = None;
        for (key, text) in self.pairs {
            // The longest field wins: a name may have a dot, and another field the name before the dot.
            let found = fields.iter().filter_map(|field| Some((*field, rest_of_key(key, field)?)));
            let Some((field, rest)) = found.max_by_key(|(field, _)| field.len()) else {
                unknown = unknown.filter(|unknown| *unknown < key).or(Some(key));
                continue;
            };
            let position = values.iter().position(|value| value.field == field).unwrap_or(values.len());
            if position == values.len() {
                let key = format!("{}{field}", self.path);
                values.push(Value { field, key, text: None, entries: Vec::new() });
            }
            if let Some(value) = values.get_mut(position) {
                match rest {
                    "" => value.text = Some(text),
                    rest => value.entries.push((rest, text)),
                }
            }
        }
        match unknown {
            Some(key) => Err(unknown_key(&self.path, key, fields)),
            None => Ok(values),
        }
    }
}

/// The key after a field and a dot, or nothing if the key is the field. `None` if the key is not of the
/// field.
fn rest_of_key<'a>(key: &'a str, field: &str) -> Option<&'a str> {
    match key.strip_prefix(field)? {
        "" => Some(""),
        rest => rest.strip_prefix('.').filter(|rest| !rest.is_empty()),
    }
}

fn unknown_key(path: &str, key: &str, fields: &[&str]) -> ValueError {
    let mut known: Vec<_> = fields.iter().map(|field| format!("{path}{field}")).collect();
    known.sort_unstable();
    ValueError::Unknown { key: format!("{path}{key}"), known }
}

impl<'de> Deserializer<'de> for Table<'de> {
    type Error = ValueError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        let path = self.path.clone();
        let values = self.into_values(fields)?;
        let result = visitor.visit_map(Values { values: values.into_iter(), current: None });
        result.map_err(|error| match error {
            ValueError::MissingField(field) => ValueError::Missing(format!("{path}{field}")),
            ValueError::KeyBelowText(key) => unknown_key(&path, &key, fields),
            other @ (ValueError::Missing(_)
            | ValueError::Unknown { .. }
            | ValueError::Invalid { .. }
            | ValueError::Unreadable { .. }
            | ValueError::Expected(_)
            | ValueError::Custom(_)
            | ValueError::Flattened(_)) => other,
        })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        let path = self.path;
        let values = self.pairs.into_iter().map(|(key, text)| Value {
            field: key,
            key: format!("{path}{key}"),
            text: Some(text),
            entries: Vec::new(),
        });
        visitor.visit_map(Values { values: values.collect::<Vec<_>>().into_iter(), current: None })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        visitor.visit_newtype_struct(self)
    }

    /// Reads a map. Serde also reads a struct with a flattened field as a map, without its fields: unknown
    /// keys could not be refused, and no text would be read as a number.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        let expected = (&visitor as &dyn Expected).to_string();
        if expected.starts_with("struct ") {
            return Err(ValueError::Flattened(expected));
        }
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct seq tuple tuple_struct enum identifier ignored_any
    }
}

/// The values of a struct or map.
struct Values<'de> {
    values: std::vec::IntoIter<Value<'de>>,
    current: Option<Value<'de>>,
}

impl<'de> MapAccess<'de> for Values<'de> {
    type Error = ValueError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ValueError> {
        self.current = self.values.next();
        let Some(value) = &self.current else { return Ok(None) };
        let field = seed.deserialize(StrDeserializer::new(value.field));
        field.map(Some).map_err(|error: ValueError| error.of_value(&value.key, value.field))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, ValueError> {
        let Some(value) = self.current.take() else {
            return Err(ValueError::custom("a value is read before its key"));
        };
        let (key, text) = (value.key.clone(), value.text.unwrap_or_default());
        seed.deserialize(value).map_err(|error| error.of_value(&key, text))
    }
}

/// The value of a field.
#[derive(Clone)]
struct Value<'de> {
    field: &'de str,
    /// The complete key of the field.
    key: String,
    /// The text of the key; `None` if only keys below it exist.
    text: Option<&'de str>,
    /// The keys below the field, without the field and the dot, and their texts.
    entries: Vec<(&'de str, &'de str)>,
}

impl<'de> Value<'de> {
    fn text(&self) -> Result<&'de str, ValueError> {
        match self.entries.first() {
            Some((rest, _)) => Err(ValueError::KeyBelowText(format!("{}.{rest}", self.field))),
            None => Ok(self.text.unwrap_or_default()),
        }
    }

    /// The keys below the field. `example` is one of them.
    fn into_table(self, example: &str) -> Result<Table<'de>, ValueError> {
        match self.text {
            Some(_) => {
                Err(ValueError::Expected(format!("keys such as {:?}", format!("{}.{example}", self.key))))
            }
            None => Ok(Table { path: format!("{}.", self.key), pairs: self.entries }),
        }
    }

    /// The items of a list.
    fn into_items(self) -> Result<Items<'de>, ValueError> {
        let text = self.text()?;
        let items =
            if text.trim().is_empty() { Vec::new() } else { text.split(',').map(str::trim).collect() };
        if items.contains(&"") {
            return Err(ValueError::Expected("values separated by commas".to_owned()));
        }
        Ok(Items { value: self, items: items.into_iter() })
    }
}

/// Parses a number. The parsers of Rust accept a `+`, which is no part of the documented form.
fn parse_number<T: FromStr>(text: &str) -> Option<T> {
    if text.starts_with('+') { None } else { text.parse().ok() }
}

/// Reads a whole number of one type.
macro_rules! numbers {
    ($($method:ident $visit:ident $number:ty)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
            match parse_number::<$number>(self.text()?) {
                Some(number) => visitor.$visit(number),
                None => Err(ValueError::Expected(format!(
                    "a whole number from {} to {}",
                    <$number>::MIN,
                    <$number>::MAX
                ))),
            }
        }
    )*};
}

/// Reads a floating-point number of one type. The parsers of Rust return infinity for a text out of range.
macro_rules! floats {
    ($($method:ident $visit:ident $number:ty)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
            match parse_number::<$number>(self.text()?).filter(|number| number.is_finite()) {
                Some(number) => visitor.$visit(number),
                None => Err(ValueError::Expected(format!(
                    "a number from {:e} to {:e}",
                    <$number>::MIN,
                    <$number>::MAX
                ))),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = ValueError;

    numbers! {
        deserialize_i8 visit_i8 i8
        deserialize_i16 visit_i16 i16
        deserialize_i32 visit_i32 i32
        deserialize_i64 visit_i64 i64
        deserialize_i128 visit_i128 i128
        deserialize_u8 visit_u8 u8
        deserialize_u16 visit_u16 u16
        deserialize_u32 visit_u32 u32
        deserialize_u64 visit_u64 u64
        deserialize_u128 visit_u128 u128
    }

    floats! {
        deserialize_f32 visit_f32 f32
        deserialize_f64 visit_f64 f64
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        if self.text.is_none() && !self.entries.is_empty() {
            return self.deserialize_map(visitor);
        }
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.text()? {
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            _ => Err(ValueError::unknown_variant("", &["true", "false"])),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_seq(self.into_items()?)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, ValueError> {
        let items = self.into_items()?;
        if items.items.len() != length {
            return Err(ValueError::Expected(format!("{length} values separated by commas")));
        }
        visitor.visit_seq(items)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.into_table("NAME")?.deserialize_map(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        let example = fields.first().copied().unwrap_or("NAME");
        self.into_table(example)?.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        visitor.visit_enum(Word(self.text()?))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_str(visitor)
    }

    forward_to_deserialize_any! {
        bytes byte_buf unit unit_struct identifier ignored_any
    }
}

/// The items of a list.
struct Items<'de> {
    value: Value<'de>,
    items: std::vec::IntoIter<&'de str>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = ValueError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ValueError> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let value = Value { text: Some(item), ..self.value.clone() };
        seed.deserialize(value).map(Some).map_err(|error| match error {
            ValueError::Expected(expected) => {
                ValueError::Expected(format!("values separated by commas, each {expected}"))
            }
            other @ (ValueError::Missing(_)
            | ValueError::MissingField(_)
            | ValueError::Unknown { .. }
            | ValueError::Invalid { .. }
            | ValueError::Unreadable { .. }
            | ValueError::Custom(_)
            | ValueError::KeyBelowText(_)
            | ValueError::Flattened(_)) => other,
        })
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// The text of an enum: the name of a variant without data.
struct Word<'de>(&'de str);

impl<'de> EnumAccess<'de> for Word<'de> {
    type Error = ValueError;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), ValueError> {
        Ok((seed.deserialize(BorrowedStrDeserializer::new(self.0))?, self))
    }
}

impl<'de> VariantAccess<'de> for Word<'de> {
    type Error = ValueError;

    fn unit_variant(self) -> Result<(), ValueError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, ValueError> {
        Err(data_variant())
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, ValueError> {
        Err(data_variant())
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, ValueError> {
        Err(data_variant())
    }
}

fn data_variant() -> ValueError {
    ValueError::custom("a variant with data cannot be read from a text")
}

#[cfg(test)]
#[path = "values_tests.rs"]
mod tests;
