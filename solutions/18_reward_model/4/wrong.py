"""Wrong and right answers to question 18.4; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "loads_again_to_compare", "calls load once more for the merges that it compares",
        check="it_is_called_once", says="called load 2 times on rank 0; it should call it once", edit="""
             try:
        -        merges = load(path).merges
        +        merges = load(path) and load(path).merges
    """),
    WrongAnswer(
        "tries_twice", "calls load a second time where it has raised",
        check="it_is_called_once", says="one_tokenizer called load 2 times", edit="""
             try:
                 merges = load(path).merges
             except Exception:
        -        merges = None
        +        try:
        +            merges = load(path).merges
        +        except Exception:
        +            merges = None
    """),
    WrongAnswer(
        "all_or_bytes", "rank 0 reads and broadcasts, and falls back to bytes on all ranks",
        check="what_is_missing_stops_all", says="returned a tokenizer with 0 merges, and no error", edit="""
        -        except Exception as error:
        -            message = [(None, f"cannot read the tokenizer {path}: {type(error).__name__}: {error}")]
        +        except Exception:
        +            message = [([], None)]
    """),
    WrongAnswer(
        "compared_with_rank_0", "each rank compares with rank 0 and returns what it found",
        check="all_ranks_agree", says="returned False on rank 1 and True on rank 0", edit="""
        -    gathered = [None] * dist.get_world_size()
        -    dist.all_gather_object(gathered, merges)
        -    return merges is not None and all(other == gathered[0] for other in gathered)
        +    box = [merges]
        +    dist.broadcast_object_list(box, src=0)
        +    return merges is not None and box[0] == merges
    """),
    WrongAnswer(
        "error_let_through", "the detector lets the error of one rank through",
        state="crashed", check="raises", says="rank 1 raised FileNotFoundError", edit="""
        -    try:
        -        merges = load(path).merges
        -    except Exception:
        -        merges = None
        +    merges = load(path).merges
    """),
    WrongAnswer(
        "every_rank_reads", "takes the except away, and every rank reads its own file",
        check="the_file_of_rank_0_counts", says="the others have another file", on="no_fallback", edit="""
        -    return Tokenizer(json.loads(Path(path).read_text())["merges"])
        +    gathered = [None] * dist.get_world_size()
        +    try:
        +        own_result = Tokenizer(json.loads(Path(path).read_text())["merges"]).merges
        +    except Exception as error:
        +        own_result = repr(error)
        +    dist.all_gather_object(gathered, own_result)
        +    for result in [own_result, *gathered]:
        +        if isinstance(result, list):
        +            return Tokenizer(result)
        +    raise RuntimeError(f"{path}: {own_result}")
    """),
    WrongAnswer(
        "general_sentence", "raises everywhere, with a sentence that fits every error",
        check="what_is_missing_stops_all", says="does not say 'No such file'", edit="""
        -        except Exception as error:
        -            message = [(None, f"cannot read the tokenizer {path}: {type(error).__name__}: {error}")]
        +        except Exception:
        +            message = [(None, f"the tokenizer {path} could not be loaded; put your own loader here")]
    """),
    WrongAnswer(
        "alike_without_one", "the detector takes ranks that all have no tokenizer for ranks with the same",
        check="broken_versions_are_caught", says="it raises on all ranks", look="has no tokenizer", edit="""
        -    return merges is not None and all(other == gathered[0] for other in gathered)
        +    return all(other == gathered[0] for other in gathered)
    """),
    WrongAnswer(
        "missing_file_alone", "catches the error of a missing file, and no other error",
        check="does not end", says="rank 1 was in broadcast", edit="""
        -        except Exception as error:
        +        except FileNotFoundError as error:
    """),
    WrongAnswer(
        "no_fallback", "takes the except away and nothing else",
        check="the_file_of_rank_0_counts", says="rank 1 raised FileNotFoundError", edit="""
        -    message = [(None, None)]
        -    if dist.get_rank() == 0:
        -        try:
        -            message = [(Tokenizer(json.loads(Path(path).read_text())["merges"]).merges, None)]
        -        except Exception as error:
        -            message = [(None, f"cannot read the tokenizer {path}: {type(error).__name__}: {error}")]
        -    dist.broadcast_object_list(message, src=0)
        -    merges, reason = message[0]
        -    if reason is not None:
        -        raise RuntimeError(reason)
        -    return Tokenizer(merges)
        +    return Tokenizer(json.loads(Path(path).read_text())["merges"])
    """),
    WrongAnswer(
        "objects_compared", "the detector compares the tokenizers themselves",
        check="right_versions_pass", says="all ranks hold the same merges", edit="""
        -        merges = load(path).merges
        +        merges = load(path)
    """),
    WrongAnswer(
        "hash_of_a_text", "the detector compares Python's hash of a text, which each process salts",
        check="right_versions_pass", says="all ranks hold the same merges", look="salts the hash", edit="""
        -        merges = load(path).merges
        +        merges = hash(str(load(path).merges))
    """),
    WrongAnswer(
        "one_text", "the detector compares the tokens of a text, in which not every merge occurs",
        check="broken_versions_are_caught", says="a merge of rare bytes is the other way round", look="which texts",
        edit="""
        -        merges = load(path).merges
        +        merges = load(path).encode("return the turned box\\n")
    """),
    WrongAnswer(
        "expects_missing_files", "the detector catches what a missing file raises and nothing else",
        state="crashed", check="raises", says="(it raises a ValueError on rank 2): rank 2 raised ValueError", edit="""
        -    except Exception:
        -        merges = None
        +    except OSError:
        +        merges = None
    """),
    RightAnswer(
        "bytes_of_the_file",
        "the bytes of the file are sent and every rank parses them; the detector compares smallest and largest numbers",
        text="""
        import json
        from pathlib import Path

        import torch
        import torch.distributed as dist


        class Tokenizer:
            def __init__(self, merges):
                self.merges = [(a, b) for a, b in merges]


        def one_tokenizer(load, path):
            message = torch.full((1024,), -1)
            try:
                pairs = [number for pair in load(path).merges for number in pair]
                message[0] = len(pairs)
                message[1 : 1 + len(pairs)] = torch.tensor(pairs, dtype=torch.int64)
            except Exception:
                pass
            low, high = message.clone(), message.clone()
            dist.all_reduce(low, dist.ReduceOp.MIN)
            dist.all_reduce(high, dist.ReduceOp.MAX)
            return bool((low == high).all() and low[0] >= 0)


        def load_tokenizer(path):
            message = [None, None]
            if dist.get_rank() == 0:
                try:
                    message = [Path(path).read_bytes(), None]
                except OSError as error:
                    message = [None, error]
            dist.broadcast_object_list(message, src=0)
            content, error = message
            if error is not None:
                raise ValueError(f"no tokenizer: {error}") from error
            parsed = json.loads(content)
            if "merges" not in parsed:
                raise ValueError(f"the file at {path} on rank 0 has no merges")
            return Tokenizer(parsed["merges"])
    """),
    RightAnswer(
        "sends_the_error_itself", "broadcasts what was raised, and every rank raises that; the detector compares hashes",
        edit="""
        -    return merges is not None and all(other == gathered[0] for other in gathered)
        +    return None not in gathered and len({repr(other) for other in gathered}) == 1
        @@
        -        except Exception as error:
        -            message = [(None, f"cannot read the tokenizer {path}: {type(error).__name__}: {error}")]
        +        except Exception as error:
        +            message = [(None, error)]
        @@
        -        raise RuntimeError(reason)
        +        raise reason
    """),
)
