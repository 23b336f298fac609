//! The JSON of shard indexes, read as strictly as headers.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::json::{duplicate, first_duplicate};
use crate::{Error, ErrorKind};

/// A tensor and its shard, borrowed from the text of the index where they are written without escapes.
pub(super) type Assigned<'a> = (Cow<'a, str>, Cow<'a, str>);

/// What was read of a shard index.
#[derive(Debug, Default)]
struct Index<'a> {
    weight_map: Vec<Assigned<'a>>,
    seen: bool,
    defect: Option<Error>,
}

/// Reads a shard index.
///
/// # Errors
/// `index_invalid`, `duplicate_key`.
pub(super) fn read_index(text: &[u8]) -> Result<Vec<Assigned<'_>>, Error> {
    let mut index = Index::default();
    let mut json = serde_json::Deserializer::from_slice(text);
    let read = json.deserialize_map(IndexVisitor(&mut index)).and_then(|()| json.end());
    if let Err(error) = read {
        let syntax = || Error::new(ErrorKind::IndexInvalid, format!("expected a shard index: {error}"));
        return Err(index.defect.unwrap_or_else(syntax));
    }
    if !index.seen {
        return Err(Error::new(ErrorKind::IndexInvalid, "expected an object 'weight_map', found none"));
    }
    if let Some(name) = first_duplicate(index.weight_map.iter().map(|(name, _)| name.as_ref())) {
        return Err(duplicate(name, "in 'weight_map'"));
    }
    Ok(index.weight_map)
}

struct IndexVisitor<'a, 'text>(&'a mut Index<'text>);

impl<'de> Visitor<'de> for IndexVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with 'weight_map'")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key != "weight_map" {
                // The total size among the metadata is wrong or missing in many published indexes.
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if std::mem::replace(&mut self.0.seen, true) {
                self.0.defect = Some(duplicate(&key, "in the index"));
                return Err(A::Error::custom("duplicate"));
            }
            map.next_value_seed(WeightMapSeed(self.0))?;
        }
        Ok(())
    }
}

struct WeightMapSeed<'a, 'text>(&'a mut Index<'text>);

impl<'de> DeserializeSeed<'de> for WeightMapSeed<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMapSeed<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor to file name under 'weight_map'")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((Text(tensor), Text(shard))) = map.next_entry()? {
            self.0.weight_map.push((tensor, shard));
        }
        Ok(())
    }
}

/// A string, borrowed if it can be.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}
