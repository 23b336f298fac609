//! What the names of tensors say about how they are divided.

/// How a tensor is divided among the ranks of a tensor-parallel engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Division {
    /// Along what it puts out: the dimension before the innermost.
    Column,
    /// As [`Division::Column`], of keys or values.
    KeyValue,
    /// Along what it takes in: the innermost dimension.
    Row,
    /// A vocabulary, outermost.
    Vocabulary,
    /// Not divided.
    Replicate,
}

/// What a name says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Role<'a> {
    /// `None` where the name says nothing.
    pub division: Option<Division>,
    /// The expert it belongs to, or all of a layer stacked.
    pub expert: Expert<'a>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expert<'a> {
    /// Of no expert.
    None,
    /// One of those whose names begin with this.
    One { of: &'a str, number: u32 },
    /// Every expert of a layer, outermost.
    Stacked,
}

/// The last parts of names, by how their tensors are divided. Both conventions: `model.layers.0.mlp.up_proj.weight`, and
/// `blk.0.ffn_up.weight` of GGUF.
const COLUMN: [&str; 12] = [
    "q_proj",
    "gate_proj",
    "up_proj",
    "w1",
    "w3",
    "attn_q",
    "ffn_gate",
    "ffn_up",
    "ffn_gate_exps",
    "ffn_up_exps",
    "q_b_proj",
    "kv_b_proj",
];
const KEY_VALUE: [&str; 4] = ["k_proj", "v_proj", "attn_k", "attn_v"];
const ROW: [&str; 7] = ["o_proj", "down_proj", "w2", "attn_output", "ffn_down", "ffn_down_exps", "out_proj"];
const VOCABULARY: [&str; 4] = ["embed_tokens", "lm_head", "token_embd", "output"];
const REPLICATE: [&str; 6] =
    ["gate", "shared_expert_gate", "router", "ffn_gate_inp", "q_a_proj", "kv_a_proj_with_mqa"];
/// Kinds of tensors whose rows and columns are those of the matrix.
const LIKE_WEIGHT: [&str; 3] = ["weight", "weight_scale", "weight_scale_inv"];

pub(super) fn role(name: &str) -> Role<'_> {
    let (rest, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let module = rest.rsplit('.').next().unwrap_or(rest);
    Role { division: division(module, kind), expert: expert(name) }
}

fn division(module: &str, kind: &str) -> Option<Division> {
    let is = |list: &[&str]| list.contains(&module);
    let row = is(&ROW);
    if kind != "bias" && !LIKE_WEIGHT.contains(&kind) {
        return None;
    }
    if row && kind == "bias" {
        // What is added after the sum over the ranks is added once.
        Some(Division::Replicate)
    } else if row {
        Some(Division::Row)
    } else if is(&COLUMN) {
        Some(Division::Column)
    } else if is(&KEY_VALUE) {
        Some(Division::KeyValue)
    } else if is(&VOCABULARY) {
        Some(Division::Vocabulary)
    } else if is(&REPLICATE) {
        Some(Division::Replicate)
    } else {
        None
    }
}

fn expert(name: &str) -> Expert<'_> {
    let mut begin = 0;
    for part in name.split('.') {
        let end = begin + part.len();
        if part == "experts" {
            let after = name.get(end + 1..).unwrap_or("").split('.').next().unwrap_or("");
            return match after.parse() {
                Ok(number) => Expert::One { of: &name[..end], number },
                Err(_) => Expert::Stacked,
            };
        }
        if part.ends_with("_exps") {
            return Expert::Stacked;
        }
        begin = end + 1;
    }
    Expert::None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_conventions_say_how_they_are_divided() {
        for (name, division) in [
            ("model.layers.3.self_attn.q_proj.weight", Some(Division::Column)),
            ("model.layers.3.self_attn.k_proj.bias", Some(Division::KeyValue)),
            ("model.layers.3.self_attn.o_proj.weight", Some(Division::Row)),
            ("model.layers.3.self_attn.o_proj.bias", Some(Division::Replicate)),
            ("model.layers.3.mlp.experts.7.down_proj.weight_scale_inv", Some(Division::Row)),
            ("blk.0.ffn_down.weight", Some(Division::Row)),
            ("blk.0.attn_v.weight", Some(Division::KeyValue)),
            ("token_embd.weight", Some(Division::Vocabulary)),
            ("model.layers.3.mlp.gate.weight", Some(Division::Replicate)),
            ("model.layers.3.mlp.up_proj.qweight", None),
            ("h.0.attn.c_attn.weight", None),
            ("x", None),
        ] {
            assert_eq!(role(name).division, division, "{name}");
        }
    }

    #[test]
    fn experts_are_told_by_number_or_stacked() {
        let one = Expert::One { of: "model.layers.3.mlp.experts", number: 7 };
        assert_eq!(role("model.layers.3.mlp.experts.7.down_proj.weight").expert, one);
        assert_eq!(role("model.layers.3.mlp.experts.gate_up_proj").expert, Expert::Stacked);
        assert_eq!(role("blk.0.ffn_up_exps.weight").expert, Expert::Stacked);
        assert_eq!(role("blk.0.ffn_up.weight").expert, Expert::None);
        assert_eq!(role("experts").expert, Expert::Stacked);
    }
}
