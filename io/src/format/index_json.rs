//! The JSON of shard indexes, read as strictly as headers.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};

use super::json::{duplicate, first_duplicate};
use crate::{Error, ErrorKind};

/// What was read of a shard index: (tensor, shard) as written.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) weight_map: Vec<(String, String)>,
    seen: bool,
    defect: Option<Error>,
}

/// Reads a shard index.
///
/// # Errors
/// `index_invalid`, `duplicate_key`.
pub(super) fn read_index(text: &[u8]) -> Result<Vec<(String, String)>, Error> {
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
    if let Some(name) = first_duplicate(index.weight_map.iter().map(|(name, _)| name.as_str())) {
        return Err(duplicate(name, "in 'weight_map'"));
    }
    Ok(index.weight_map)
}

struct IndexVisitor<'a>(&'a mut Index);

impl<'de> Visitor<'de> for IndexVisitor<'_> {
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

struct WeightMapSeed<'a>(&'a mut Index);

impl<'de> DeserializeSeed<'de> for WeightMapSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMapSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor to file name under 'weight_map'")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
            self.0.weight_map.push((tensor, shard));
        }
        Ok(())
    }
}
