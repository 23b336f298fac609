//! The JSON of safetensors headers, read strictly: duplicates, types and ranges are errors.

use std::collections::HashSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};

use super::Dtype;
use crate::error::quoted;
use crate::{Error, ErrorKind};

/// Reserved key for the textual metadata.
pub(super) const METADATA_KEY: &str = "__metadata__";

/// One entry of a header, as written. Offsets count from the end of the header.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// What was read, and why reading stopped early if that was more than a matter of syntax.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub(super) entries: Vec<Entry>,
    pub(super) metadata: Vec<(String, String)>,
    metadata_seen: bool,
    defect: Option<Error>,
    failed_in: Option<String>,
}

/// Reads a header.
///
/// # Errors
/// `invalid_header`, `duplicate_key`, `bad_dtype`.
pub(super) fn read_header<'de, R: serde_json::de::Read<'de>>(input: R) -> Result<Header, Error> {
    let mut header = Header::default();
    let mut json = serde_json::Deserializer::new(input);
    let read = json.deserialize_map(HeaderVisitor(&mut header)).and_then(|()| json.end());
    if let Err(error) = read {
        if let Some(defect) = header.defect {
            return Err(defect);
        }
        let place = header.failed_in.map_or(String::new(), |name| format!("tensor {}: ", quoted(&name)));
        return Err(Error::new(ErrorKind::InvalidHeader, format!("{place}{error} of the header's JSON")));
    }
    if let Some(name) = first_duplicate(header.entries.iter().map(|e| e.name.as_str())) {
        return Err(duplicate(name, "in the header"));
    }
    Ok(header)
}

pub(super) fn duplicate(name: &str, place: &str) -> Error {
    Error::new(ErrorKind::DuplicateKey, format!("key {} appears twice {place}", quoted(name)))
}

/// The smallest name that appears twice.
pub(super) fn first_duplicate<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    // Long names with the same beginnings are dear to sort: that is only done to say which one.
    let mut seen = HashSet::with_capacity(names.size_hint().0);
    if names.clone().all(|name| seen.insert(name)) {
        return None;
    }
    let mut sorted: Vec<&str> = names.collect();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

struct HeaderVisitor<'a>(&'a mut Header);

impl<'de> Visitor<'de> for HeaderVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key != METADATA_KEY {
                map.next_value_seed(EntrySeed { header: self.0, name: key })?;
                continue;
            }
            if std::mem::replace(&mut self.0.metadata_seen, true) {
                self.0.defect = Some(duplicate(&key, "in the header"));
                return Err(A::Error::custom("duplicate"));
            }
            map.next_value_seed(MetadataSeed(self.0))?;
        }
        Ok(())
    }
}

struct MetadataSeed<'a>(&'a mut Header);

impl<'de> DeserializeSeed<'de> for MetadataSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        // `null` is what one published converter writes for "no metadata".
        json.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text values under the reserved name '__metadata__'")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let Ok(value) = map.next_value::<String>() else {
                let message =
                    format!("'{METADATA_KEY}' is reserved for text, key {} holds none", quoted(&key));
                self.0.defect = Some(Error::new(ErrorKind::InvalidHeader, message));
                return Err(A::Error::custom("metadata"));
            };
            self.0.metadata.push((key, value));
        }
        if let Some(name) = first_duplicate(self.0.metadata.iter().map(|(k, _)| k.as_str())) {
            self.0.defect = Some(duplicate(name, "in '__metadata__'"));
            return Err(A::Error::custom("duplicate"));
        }
        Ok(())
    }
}

struct EntrySeed<'a> {
    header: &'a mut Header,
    name: String,
}

impl<'de> DeserializeSeed<'de> for EntrySeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        let Self { header, name } = self;
        match json.deserialize_map(EntryVisitor { name: &name, defect: &mut header.defect }) {
            Ok((dtype, shape, [begin, end])) => {
                header.entries.push(Entry { name, dtype, shape, begin, end });
                Ok(())
            }
            Err(error) => {
                header.failed_in = Some(name);
                Err(error)
            }
        }
    }
}

struct EntryVisitor<'a> {
    name: &'a str,
    defect: &'a mut Option<Error>,
}

impl EntryVisitor<'_> {
    fn set_once<T, E: serde::de::Error>(
        &mut self,
        field: &mut Option<T>,
        key: &str,
        value: T,
    ) -> Result<(), E> {
        if field.replace(value).is_none() {
            return Ok(());
        }
        *self.defect = Some(duplicate(key, &format!("in tensor {}", quoted(self.name))));
        Err(E::custom("duplicate"))
    }
}

impl<'de> Visitor<'de> for EntryVisitor<'_> {
    type Value = (Dtype, Vec<u64>, [u64; 2]);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(key) = map.next_key::<Field>()? {
            match key {
                Field::Dtype => {
                    let value = map.next_value_seed(DtypeSeed { name: self.name, defect: self.defect })?;
                    self.set_once(&mut dtype, "dtype", value)?;
                }
                Field::Shape => {
                    let value = map.next_value::<Vec<u64>>()?;
                    self.set_once(&mut shape, "shape", value)?;
                }
                Field::Offsets => {
                    let value = map.next_value::<[u64; 2]>()?;
                    self.set_once(&mut offsets, "data_offsets", value)?;
                }
                Field::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok((
            dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
            shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?,
        ))
    }
}

#[derive(serde::Deserialize)]
enum Field {
    #[serde(rename = "dtype")]
    Dtype,
    #[serde(rename = "shape")]
    Shape,
    #[serde(rename = "data_offsets")]
    Offsets,
    // Fields of later revisions of the format: read over.
    #[serde(other)]
    Other,
}

struct DtypeSeed<'a> {
    name: &'a str,
    defect: &'a mut Option<Error>,
}

impl<'de> DeserializeSeed<'de> for DtypeSeed<'_> {
    type Value = Dtype;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Dtype, D::Error> {
        // Any type is taken here, so that `null` is reported as a dtype nobody knows, with the tensor's name.
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DtypeSeed<'_> {
    type Value = Dtype;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an element type")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Dtype, E> {
        Dtype::from_name(text).ok_or_else(|| self.unknown(&quoted(text)))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Dtype, E> {
        Err(self.unknown("null"))
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Dtype, E> {
        Err(self.unknown(&value.to_string()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Dtype, E> {
        Err(self.unknown(&value.to_string()))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Dtype, E> {
        Err(self.unknown(&value.to_string()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Dtype, E> {
        Err(self.unknown(&value.to_string()))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, _: A) -> Result<Dtype, A::Error> {
        Err(self.unknown("an array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Dtype, A::Error> {
        Err(self.unknown("an object"))
    }
}

impl DtypeSeed<'_> {
    fn unknown<E: serde::de::Error>(self, found: &str) -> E {
        let message = format!("tensor {}: unknown element type {found}", quoted(self.name));
        *self.defect = Some(Error::new(ErrorKind::BadDtype, message));
        E::custom("dtype")
    }
}
