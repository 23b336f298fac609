//! Groups of models whose tensors have the names that published mixtures give them.

use super::{Catalogue, GroupRules};
use spoc_io::{Dtype, Model, OpenOptions, PlanOptions, SafetensorsHeader};

/// A safetensors model of byte tensors with these names and shapes; every byte is the number of its row.
fn model(tensors: &[(&str, &[u64])]) -> (tempfile::TempDir, Model) {
    let mut header = SafetensorsHeader::new();
    for (name, shape) in tensors {
        header.add(name, Dtype::U8, shape).unwrap();
    }
    let mut file = header.bytes();
    tensors.iter().for_each(|(_, shape)| file.extend(bytes_of(shape)));
    write("model.safetensors", &file)
}

fn bytes_of(shape: &[u64]) -> Vec<u8> {
    let row: u64 = shape[1..].iter().product();
    (0..shape[0]).flat_map(|at| (0..row).map(move |_| u8::try_from(at).unwrap())).collect()
}

fn write(name: &str, bytes: &[u8]) -> (tempfile::TempDir, Model) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let model = spoc_io::open_model(&path, &OpenOptions::default()).unwrap();
    (folder, model)
}

fn per_expert(model: &Model) -> Catalogue {
    Catalogue::from_model(model, &GroupRules::default().per_expert()).unwrap()
}

/// The names of a group's tensors, sorted.
fn members(catalogue: &Catalogue, model: &Model, group: &str) -> Vec<String> {
    let number = catalogue.group_named(group).unwrap_or_else(|| panic!("no group {group}"));
    let tensors = catalogue.tensors(number).iter();
    let mut names: Vec<String> =
        tensors.map(|tensor| model.tensors()[tensor.tensor as usize].name.clone()).collect();
    names.sort();
    names
}

/// Name, prefix of an expert's tensors, its matrices, the parts of each, and what stays with the layer.
type Family =
    (&'static str, &'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

/// Models with an expert a module: the prefix of an expert's tensors, what they are called, and what stays.
#[test]
fn experts_that_are_modules_with_scales_zeros_and_biases() {
    const QUANTISED: &[&str] = &["qweight", "qzeros", "scales", "g_idx"];
    const FP8: &[&str] = &["weight", "weight_scale_inv"];
    let families: [Family; 5] = [
        (
            "mixtral",
            "block_sparse_moe.experts",
            &["w1", "w2", "w3"],
            QUANTISED,
            &["block_sparse_moe.gate.weight"],
        ),
        ("qwen3", "mlp.experts", &["gate_proj", "up_proj", "down_proj"], QUANTISED, &["mlp.gate.weight"]),
        (
            "deepseek v3",
            "mlp.experts",
            &["gate_proj", "up_proj", "down_proj"],
            FP8,
            &["mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.shared_experts.up_proj.weight"],
        ),
        (
            "glm",
            "mlp.experts",
            &["gate_proj", "up_proj", "down_proj"],
            &["weight", "weight_scale", "bias"],
            &["mlp.gate.weight", "mlp.shared_experts.down_proj.weight"],
        ),
        ("olmoe", "mlp.experts", &["gate_proj", "up_proj", "down_proj"], &["weight"], &["mlp.gate.weight"]),
    ];
    for (family, prefix, matrices, parts, stays) in &families {
        let mut names = vec!["model.embed_tokens.weight".to_owned(), "lm_head.weight".to_owned()];
        for layer in 0..2 {
            let of_layer = |name: &str| format!("model.layers.{layer}.{name}");
            names.push(of_layer("self_attn.q_proj.weight"));
            names.extend(stays.iter().map(|name| of_layer(name)));
            for expert in 0..12 {
                for matrix in *matrices {
                    names.extend(
                        parts.iter().map(|part| of_layer(&format!("{prefix}.{expert}.{matrix}.{part}"))),
                    );
                }
            }
        }
        let tensors: Vec<(&str, &[u64])> = names.iter().map(|name| (name.as_str(), &[3u64][..])).collect();
        let (_folder, model) = model(&tensors);
        let catalogue = per_expert(&model);
        assert_eq!(catalogue.groups().len(), 2 + 2 * 13, "{family}");
        let report = catalogue.experts();
        assert_eq!((report.groups, report.experts_max, report.unknown.len()), (24, 12, 0), "{family}");
        let expert = members(&catalogue, &model, &format!("model.layers.1.{prefix}.10"));
        assert_eq!(expert.len(), matrices.len() * parts.len(), "{family}: {expert:?}");
        assert!(expert.iter().all(|name| name.contains(".10.")), "{family}: {expert:?}");
        assert_eq!(members(&catalogue, &model, "model.layers.1").len(), 1 + stays.len(), "{family}");
        // Embedding, layer 0, its experts together, layer 1, …, head; experts by number and not by text.
        let positions: Vec<u32> = catalogue.groups().iter().map(|group| group.position).collect();
        assert_eq!((positions[0], positions[1], positions[2], positions[13]), (0, 1, 2, 2), "{family}");
        assert_eq!((positions[14], positions[15], positions[27]), (3, 4, 5), "{family}");
        assert_eq!(catalogue.groups()[12].expert, Some(10), "{family}");
        // By the rules without experts a layer is one group, as it was.
        assert_eq!(Catalogue::from_model(&model, &GroupRules::default()).unwrap().groups().len(), 4);
    }
}

/// Names of stacked tensors, each with its outermost dimension, and of what is not to be cut.
#[test]
fn stacked_experts_are_cut_with_their_scales_and_biases() {
    let gpt_oss: &[(&str, &[u64])] = &[
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", &[4, 6, 2]),
        ("model.layers.0.mlp.experts.gate_up_proj_scales", &[4, 3]),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", &[4, 5]),
        ("model.layers.0.mlp.experts.down_proj_blocks", &[4, 2, 2]),
        ("model.layers.0.mlp.experts.down_proj_scales", &[4, 1]),
        ("model.layers.0.mlp.experts.down_proj_bias", &[4, 7]),
        ("model.layers.0.mlp.router.weight", &[4, 8]),
        ("model.layers.0.mlp.router.bias", &[4]),
    ];
    let first_names: &[(&str, &[u64])] = &[
        ("block.0.mlp.mlp1_weight.blocks", &[4, 6, 2]),
        ("block.0.mlp.mlp1_weight.scales", &[4, 3]),
        ("block.0.mlp.mlp1_bias", &[4, 5]),
        ("block.0.mlp.mlp2_weight.blocks", &[4, 2, 2]),
        ("block.0.mlp.mlp2_bias", &[4, 7]),
        ("block.0.mlp.gate.weight", &[4, 8]),
    ];
    let gemma: &[(&str, &[u64])] = &[
        ("model.language_model.layers.0.experts.gate_up_proj", &[4, 6, 2]),
        ("model.language_model.layers.0.experts.down_proj", &[4, 3, 2]),
        ("model.language_model.layers.0.router.per_expert_scale", &[4]),
        ("model.language_model.layers.0.router.proj.weight", &[4, 8]),
    ];
    for (family, tensors, experts, cut, bytes) in [
        ("gpt-oss", gpt_oss, "model.layers.0.mlp.experts", 6, 12 + 3 + 5 + 4 + 1 + 7),
        ("gpt-oss's first names", first_names, "block.0.mlp", 5, 12 + 3 + 5 + 4 + 7),
        ("gemma", gemma, "model.language_model.layers.0.experts", 2, 12 + 6),
    ] {
        let (_folder, model) = model(tensors);
        let catalogue = per_expert(&model);
        let report = catalogue.experts();
        assert_eq!((report.groups, report.experts_max), (4, 4), "{family}");
        assert_eq!(report.unknown, [], "{family}");
        for expert in 0..4u8 {
            let name = format!("{experts}.{expert}");
            assert_eq!(members(&catalogue, &model, &name).len(), cut, "{family}");
            let number = catalogue.group_named(&name).unwrap();
            assert_eq!(catalogue.group(number).unwrap().tensor_bytes, bytes, "{family}");
            for part in catalogue.tensors(number) {
                let file = &catalogue.files()[part.extent.file as usize];
                let mut read = vec![0; usize::try_from(part.extent.len_bytes).unwrap()];
                file.read_exact_at(&mut read, part.extent.offset).unwrap();
                assert!(
                    read.iter().all(|&byte| byte == expert),
                    "{family}: {name} has another expert's bytes"
                );
            }
            assert!(catalogue.plan(number, &PlanOptions::default()).is_ok());
        }
        assert_eq!(catalogue.groups().len(), 5, "{family}: the router stays with the layer");
        assert_eq!(catalogue.tensor_bytes(), model.tensor_bytes(), "{family}");
    }
}

/// A GGUF file of f32 tensors; dimensions in GGUF's order, contiguous first.
fn gguf(tensors: &[(&str, &[u64])]) -> (tempfile::TempDir, Model) {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(0u64.to_le_bytes());
    let mut data: Vec<u8> = Vec::new();
    for (name, shape) in tensors {
        file.extend((name.len() as u64).to_le_bytes());
        file.extend(name.as_bytes());
        file.extend(u32::try_from(shape.len()).unwrap().to_le_bytes());
        shape.iter().for_each(|dimension| file.extend(dimension.to_le_bytes()));
        file.extend(0u32.to_le_bytes());
        data.resize(data.len().next_multiple_of(32), 0);
        file.extend((data.len() as u64).to_le_bytes());
        let (&outermost, inner) = shape.split_last().unwrap();
        for at in 0..outermost {
            (0..inner.iter().product::<u64>()).for_each(|_| data.extend((at as f32).to_le_bytes()));
        }
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    write("model.gguf", &file)
}

#[test]
fn gguf_experts_are_cut_along_the_last_dimension() {
    let (_folder, model) = gguf(&[
        ("token_embd.weight", &[4, 2]),
        ("blk.0.attn_q.weight", &[4, 4]),
        ("blk.0.ffn_gate_inp.weight", &[4, 3]),
        ("blk.0.exp_probs_b.bias", &[3]),
        ("blk.0.ffn_gate_exps.weight", &[4, 2, 3]),
        ("blk.0.ffn_up_exps.weight", &[4, 2, 3]),
        ("blk.0.ffn_down_exps.weight", &[2, 4, 3]),
        ("blk.0.ffn_down_exps.bias", &[4, 3]),
        ("blk.0.ffn_down_exps.scale", &[3]),
        ("blk.0.ffn_up_shexp.weight", &[4, 2]),
        ("blk.1.ffn_gate.0.weight", &[4, 2]),
        ("blk.1.ffn_gate.1.weight", &[4, 2]),
        ("blk.1.ffn_up.1.weight", &[4, 2]),
        ("blk.1.ffn_norm.weight", &[4]),
    ]);
    let catalogue = per_expert(&model);
    assert_eq!(catalogue.experts().unknown, []);
    assert_eq!((catalogue.experts().groups, catalogue.experts().experts_max), (5, 3));
    assert_eq!(members(&catalogue, &model, "blk.0.ffn.2").len(), 5);
    assert_eq!(members(&catalogue, &model, "blk.0").len(), 4);
    assert_eq!(
        members(&catalogue, &model, "blk.1.ffn.1"),
        ["blk.1.ffn_gate.1.weight", "blk.1.ffn_up.1.weight"]
    );
    let number = catalogue.group_named("blk.0.ffn.2").unwrap();
    for part in catalogue.tensors(number) {
        let mut read = vec![0; usize::try_from(part.extent.len_bytes).unwrap()];
        catalogue.files()[0].read_exact_at(&mut read, part.extent.offset).unwrap();
        assert!(read.chunks(4).all(|word| word == 2f32.to_le_bytes()), "another expert's bytes");
    }
}

#[test]
fn what_looks_like_experts_and_is_unknown_is_stated_and_stays_whole() {
    let tensors: [(&str, &[u64]); 4] = [
        ("model.layers.0.moe.expert_bank.w1", &[4, 3]),
        ("model.layers.0.mlp.experts.of_nobody", &[0, 3]),
        ("model.layers.0.mlp.router.weight", &[4, 3]),
        ("model.layers.0.mlp.shared_expert.up_proj.weight", &[3]),
    ];
    let (_folder, model) = model(&tensors);
    let catalogue = per_expert(&model);
    let unknown: Vec<&str> = catalogue.experts().unknown.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(unknown.len(), 2, "{unknown:?}");
    assert!(unknown.contains(&tensors[0].0) && unknown.contains(&tensors[1].0), "{unknown:?}");
    assert!(
        members(&catalogue, &model, "model.layers.0")
            .contains(&"model.layers.0.moe.expert_bank.w1".to_owned())
    );
}

#[test]
fn the_users_patterns_name_experts_too() {
    let (_folder, model) = model(&[
        ("net.0.bank.5.w", &[3]),
        ("net.0.bank.5.scale", &[1]),
        ("net.0.bank.6.w", &[3]),
        ("net.0.norm", &[3]),
        ("net.1.stack.w1", &[2, 3]),
        ("net.1.stack.w2", &[2, 1]),
    ]);
    let patterns = ["net.{layer}.bank.{expert}", "net.{layer}.stack.*[]", "net.{layer}"];
    let patterns: Vec<super::Pattern> = patterns.iter().map(|text| text.parse().unwrap()).collect();
    assert_eq!(patterns[1].to_string(), "net.{layer}.stack.*[]");
    let catalogue = Catalogue::from_model(&model, &GroupRules::with_patterns(patterns)).unwrap();
    let names: Vec<&str> = catalogue.groups().iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["net.0", "net.0.bank.5", "net.0.bank.6", "net.1.stack.0", "net.1.stack.1"]);
    assert_eq!(members(&catalogue, &model, "net.0.bank.5").len(), 2);
    assert_eq!(members(&catalogue, &model, "net.1.stack.1").len(), 2);
    for bad in ["{expert}.x", "a.{layer}.{expert}.x[]", "a[]", "a.{layer}[]", "a.{layer}.b[c]"] {
        assert!(bad.parse::<super::Pattern>().is_err(), "{bad}");
    }
}
