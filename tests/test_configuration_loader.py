"""From paths to deployments: finding files, choosing hardware, resolving, naming."""

from __future__ import annotations

import os
from pathlib import Path

from inference_lab.configuration.loader import ConfigError, load, shipped_configs
from inference_lab.configuration.schema import KvAware, LeastLoaded, RoundRobin, TimeCorrection
from tests.model_files import GPU, MODEL, SCHEDULER, ModelFiles, by_name, inline, toml


class FindingFiles(ModelFiles):
    """From paths to files."""

    def test_a_folder_is_read_in_order_of_its_file_names(self) -> None:
        for name, served in (("b.toml", "B"), ("a.toml", "A"), ("c.toml", "C")):
            self.write(by_name(served_name=served), name)
        self.write("not a model", "readme.txt")
        self.write("not a model", ".#a.toml")
        os.mkdir(self.path("folder.toml"))
        loaded = load([self.folder])
        self.assertEqual([d.name for d in loaded.deployments], ["A", "B", "C"])
        self.assertEqual(
            [d.source for d in loaded.deployments],
            [self.path(name) for name in ("a.toml", "b.toml", "c.toml")],
        )

    def test_files_and_folders_mix_and_a_file_given_twice_counts_once(self) -> None:
        path = Path(self.write(by_name(), "a.toml"))
        os.mkdir(self.path("more"))
        self.write(by_name(served_name="B"), "more/b.toml")
        loaded = load([path, self.path("more"), str(path)])
        self.assertEqual([d.name for d in loaded.deployments], ["Llama-3.1-8B-Instruct", "B"])

    def test_a_missing_path_is_named(self) -> None:
        error = self.assertRaises(ConfigError, load, [self.path("nowhere.toml")])
        self.assertEqual(self.line(error), "nowhere.toml: No such file or directory")

    def test_a_folder_without_model_files(self) -> None:
        error = self.assertRaises(ConfigError, load, [self.folder])
        self.assertIn("no model files; expected at least one *.toml", self.line(error))

    def test_no_paths_at_all(self) -> None:
        error = self.assertRaises(ConfigError, load, [])
        self.assertIn("at least one file or directory", self.line(error))

    def test_a_line_break_in_a_path_does_not_break_the_line(self) -> None:
        error = self.assertRaises(ConfigError, load, ["no\nsuch\u2028file.toml"])
        self.assertEqual(self.line(error), r"no\nsuch\u2028file.toml: No such file or directory")

    def test_a_dangling_link_is_an_error_not_a_missing_model(self) -> None:
        os.symlink(self.path("gone"), self.path("x.toml"))
        error = self.assertRaises(ConfigError, load, [self.folder])
        self.assertEqual(self.line(error), "x.toml: No such file or directory")

    def test_bad_toml_says_where(self) -> None:
        line = self.refusal('model = "x"\nscheduler = \n')
        self.assertTrue(line.startswith("x.toml: not TOML: "), line)
        self.assertIn("line 2", line)

    def test_bytes_that_are_not_utf8(self) -> None:
        self.assertEqual(self.refusal(b'model = "\xff"'), "x.toml: not TOML: byte 9 is not UTF-8")

    def test_a_byte_order_mark_is_no_obstacle(self) -> None:
        (deployment,) = load([self.write(b"\xef\xbb\xbf" + toml(by_name()).encode())]).deployments
        self.assertEqual(deployment.name, "Llama-3.1-8B-Instruct")

    def test_numbers_too_long_and_nesting_too_deep(self) -> None:
        for content in ("a = " + "9" * 5000, "a = " + "[" * 100_000, "a = 0x" + "f" * 5000):
            self.assertIn("x.toml: ", self.refusal(content))

    def test_the_shipped_configs_are_there(self) -> None:
        self.assertIn("deepseek-v4-flash.toml", os.listdir(shipped_configs()))


class ChoosingHardware(ModelFiles):
    """``--hardware``."""

    def test_without_a_choice_each_file_runs_on_its_first_entry(self) -> None:
        self.assertEqual(self.only(by_name()).entry, "b200")

    def test_files_without_the_entry_are_skipped_aloud(self) -> None:
        self.write(by_name(), "a.toml")
        self.write(by_name(served_name="B", hardware={"gh200": {}}), "b.toml")
        loaded = load([self.folder], "h100")
        self.assertEqual([d.entry for d in loaded.deployments], ["h100"])
        (message,) = loaded.skipped
        self.assertEqual(
            message, f"{self.path('b.toml')}: skipped, it has no [hardware.h100]; it has gh200"
        )

    def test_no_file_with_the_entry_is_an_error_that_lists_the_entries(self) -> None:
        line = self.refusal(by_name(), "b20")
        self.assertEqual(
            line,
            'x.toml: no file has a [hardware.b20] entry, did you mean "b200"? there are b200, h100',
        )

    def test_a_skipped_file_must_still_be_right(self) -> None:
        self.write(by_name(), "a.toml")
        self.write(by_name(hardware={"gh200": {"tpp": 1}}), "b.toml")
        error = self.assertRaises(ConfigError, load, [self.folder], "h100")
        self.assertIn('b.toml: [hardware.gh200] tpp: unknown key, did you mean "tp"?', str(error))
        self.write(inline({"hidden": 5}), "b.toml")
        error = self.assertRaises(ConfigError, load, [self.folder], "h100")
        self.assertIn("b.toml: [model] hidden: unknown key", str(error))

    def test_the_key_of_an_entry_names_its_gpu_unless_spec_does(self) -> None:
        file = by_name(hardware={"b200": {}, "rack": {"spec": "h100"}, "own": {"spec": GPU}})
        file["model"] = MODEL
        for entry, gpu in (("b200", "B200"), ("rack", "H100"), ("own", "Small")):
            self.assertEqual(self.only(file, entry).hardware.name, gpu)

    def test_an_entry_that_names_no_gpu(self) -> None:
        self.assertEqual(
            self.refusal(by_name(hardware={"b20": {}})),
            'x.toml: [hardware.b20] spec: missing, and "b20" is not in the catalog, '
            'did you mean "b200"? allowed are b200, b300, gh200, h100 or a table',
        )
        self.assertEqual(
            self.refusal(by_name(hardware={"b200": {"spec": "a toaster"}})),
            'x.toml: [hardware.b200] spec: "a toaster" is not in the catalog; '
            "allowed are b200, b300, gh200, h100 or a table",
        )


class Resolving(ModelFiles):
    """Shared tables, and an entry's own over them."""

    def test_an_inline_file_resolves_to_what_it_says(self) -> None:
        deployment = self.only(
            inline(
                spec={"fabric": {"gpus_per_node": 8, "scale_up": {"bandwidth": 10**11}}},
                tp=4,
                ep=2,
                replicas=3,
                dp_attention=True,
                time_correction={"alpha": 2, "beta": 0.5},
            )
        )
        self.assertEqual(deployment.name, "Tiny")
        self.assertEqual(deployment.tensor_parallel, 4)
        self.assertEqual(deployment.expert_parallel, 2)
        self.assertEqual(deployment.replicas, 3)
        self.assertTrue(deployment.dp_attention)
        self.assertEqual(deployment.time_correction, TimeCorrection(alpha=2.0, beta=0.5))
        self.assertEqual(deployment.router, RoundRobin())
        self.assertEqual(deployment.max_model_len, 4096)
        self.assertEqual(deployment.scheduler.gpu_memory_utilization, 0.9)
        self.assertIsNone(deployment.fault)

    def test_whole_amounts_may_be_written_as_floats(self) -> None:
        stream = {"precision": "bf16", "active_params": 8.03e8, "resident_params": 1e9}
        file = inline({"weights": [stream]}, {"memory_capacity": 192e9, "flops_bf16": 10**15})
        file["scheduler"]["kv_cache_capacity"] = 1e9
        deployment = self.only(file)
        self.assertEqual(deployment.model.weights[0].active_params, 803_000_000)
        self.assertIsInstance(deployment.model.weights[0].active_params, int)
        self.assertIsInstance(deployment.hardware.memory_capacity, int)
        self.assertIsInstance(deployment.scheduler.kv_cache_capacity, int)
        self.assertIsInstance(deployment.hardware.flops_bf16, float)

    def test_an_entry_lays_its_scheduler_keys_over_the_shared_ones(self) -> None:
        file = by_name(hardware={"b200": {"scheduler": {"max_num_seqs": 7}}, "h100": {}})
        self.assertEqual(self.only(file, "b200").scheduler.max_num_seqs, 7)
        self.assertEqual(self.only(file, "b200").scheduler.block_size, 16)
        self.assertEqual(self.only(file, "h100").scheduler.max_num_seqs, 256)

    def test_an_entry_may_complete_the_shared_scheduler(self) -> None:
        shared = {key: value for key, value in SCHEDULER.items() if key != "block_size"}
        own = {"b200": {"scheduler": {"block_size": 32}}}
        file = by_name(scheduler=shared, hardware=own)
        self.assertEqual(self.only(file).scheduler.block_size, 32)

    def test_a_shared_key_must_be_right_even_where_every_entry_overrides_it(self) -> None:
        own = {"b200": {"scheduler": {"block_size": 32}}}
        line = self.refusal(by_name(scheduler={**SCHEDULER, "block_size": "x"}, hardware=own))
        self.assertIn("x.toml: [scheduler] block_size: expected a whole number >= 1", line)

    def test_an_entrys_router_replaces_the_shared_one_whole(self) -> None:
        file = by_name(router={"policy": "kv_aware", "load_weight": 2})
        file["hardware"]["h100"]["router"] = {"policy": "least_loaded"}
        self.assertEqual(self.only(file, "b200").router, KvAware(load_weight=2.0))
        self.assertEqual(self.only(file, "h100").router, LeastLoaded())

    def test_policies_are_read_in_any_case_and_sjf_is_sof(self) -> None:
        for written, policy in (("FCFS", "fcfs"), ("Sjf", "sof"), ("LtF", "ltf")):
            file = by_name(scheduler={**SCHEDULER, "policy": written})
            self.assertEqual(self.only(file).scheduler.policy, policy)
            file = by_name(hardware={"b200": {"scheduler": {"policy": written}}})
            self.assertEqual(self.only(file).scheduler.policy, policy)

    def test_a_fault_table_is_handed_on_as_written(self) -> None:
        fault = {"mode": "whatever", "after_chunks": -3}
        self.assertEqual(self.only(by_name(fault=fault)).fault, fault)

    def test_max_model_len_shortens_the_context(self) -> None:
        file = by_name(scheduler={**SCHEDULER, "max_model_len": 1000})
        self.assertEqual(self.only(file).max_model_len, 1000)

    def test_tables_of_features_not_built_warn(self) -> None:
        file = by_name(memory={}, speculative={"gamma": 4}, decode_router={"policy": "any"})
        file["hardware"]["b200"]["speculative"] = {}
        warnings = self.load(file).warnings
        path = self.path("x.toml")
        for table in ("memory", "speculative", "decode_router", "hardware.b200.speculative"):
            with self.subTest(table=table):
                self.assertEqual(
                    [w for w in warnings if w.startswith(f"{path}: [{table}] has no effect: ")],
                    [w for w in warnings if f"[{table}]" in w],
                )
        self.assertEqual(len(warnings), 4)
        self.assertEqual(len(self.load(file, "h100").warnings), 3)

    def test_kv_tiers_of_inline_hardware_warn(self) -> None:
        (warning,) = self.load(inline(spec={"memory": {"stores": []}})).warnings
        self.assertIn("x.toml: [hardware.own.spec.memory] has no effect", warning)


class Naming(ModelFiles):
    """The ids the API serves."""

    def test_the_models_name_is_the_id_and_its_catalog_key_an_alias(self) -> None:
        deployment = self.only(by_name())
        self.assertEqual(deployment.name, "Llama-3.1-8B-Instruct")
        self.assertEqual(deployment.aliases, ("llama-3.1-8b-instruct",))
        self.assertEqual(self.only(by_name(model="gpt-oss-20b")).aliases, ())
        self.assertEqual(self.only(inline()).aliases, ())

    def test_served_name_overrides_the_id(self) -> None:
        deployment = self.only(by_name(served_name="mine"))
        self.assertEqual(
            (deployment.name, deployment.model.name), ("mine", "Llama-3.1-8B-Instruct")
        )
        self.assertEqual(deployment.aliases, ("llama-3.1-8b-instruct",))

    def test_two_files_of_one_id_are_refused_naming_both(self) -> None:
        self.write(by_name(), "a.toml")
        self.write(by_name(), "b.toml")
        line = self.line(self.assertRaises(ConfigError, load, [self.folder]))
        self.assertEqual(
            line,
            'b.toml: served_name: a.toml serves "Llama-3.1-8B-Instruct" as well; '
            "set served_name to another name in one of them",
        )

    def test_two_files_of_one_id_on_different_hardware_get_along(self) -> None:
        self.write(by_name(hardware={"b200": {}}), "a.toml")
        self.write(by_name(hardware={"h100": {}}), "b.toml")
        self.assertEqual(len(load([self.folder], "h100").deployments), 1)

    def test_an_alias_goes_to_the_file_that_serves_the_model_under_its_own_name(self) -> None:
        self.write(by_name(served_name="mine"), "a.toml")
        self.write(by_name(), "b.toml")
        aliases = [d.aliases for d in load([self.folder]).deployments]
        self.assertEqual(aliases, [(), ("llama-3.1-8b-instruct",)])

    def test_an_alias_never_beats_a_name(self) -> None:
        self.write(by_name(), "a.toml")
        other = inline({"name": "llama-3.1-8b-instruct"})
        self.write(other, "b.toml")
        self.assertEqual([d.aliases for d in load([self.folder]).deployments], [(), ()])
