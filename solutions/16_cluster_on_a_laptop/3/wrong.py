"""Wrong and right answers to question 16.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

WHOLE, ONCE = "every_rank_gets_the_whole_file", "each_machine_downloads_once"
PART, FOLDER = "the_file_is_always_whole", "downloads_stay_in_the_folder"
ERROR, SENT = "an_error_reaches_every_rank", "the_file_is_not_sent"
ANSWERS = (
    WrongAnswer(
        "once_per_job", "downloads on rank 0 alone",
        check=WHOLE, says="(two machines): rank 1 returned, and the file on its machine is not there",
        look="LOCAL_RANK once per machine", edit="""
        -    if os.environ["LOCAL_RANK"] == "0" and not target.exists():
        +    if os.environ["RANK"] == "0" and not target.exists():
    """),
    WrongAnswer(
        "takes_what_is_left", "takes the part of a download that broke off for the whole",
        check=WHOLE, says="147,456 of 294,912 bytes", look="the attempt that failed", edit="""
        -            download(part)
        -            part.replace(target)
        +            if not part.exists():
        +                download(part)
        +            part.replace(target)
    """),
    WrongAnswer(
        "every_rank_downloads", "downloads on every rank, under a name for each",
        check=ONCE, says="(one machine): machine 0 downloaded 2 times, not 1", look="which of its ranks", edit="""
        -    if os.environ["LOCAL_RANK"] == "0" and not target.exists():
        -        machine = os.environ["GROUP_RANK"]
        +    if not target.exists():
        +        machine = os.environ["RANK"]
    """),
    WrongAnswer(
        "again_each_time", "downloads what is there already",
        check=ONCE, says="(two machines that have it): machine 0 downloaded 1 times, not 0", look="there already", edit="""
        -    if os.environ["LOCAL_RANK"] == "0" and not target.exists():
        +    if os.environ["LOCAL_RANK"] == "0":
    """),
    WrongAnswer(
        "under_its_final_name", "downloads to where others may read",
        check=PART, says="while rank 0 downloaded, data.bin was there and not whole", look="rename", edit="""
        -            download(part)
        -            part.replace(target)
        -        except Exception as failure:
        +            download(target)
        +        except Exception as failure:
        +            target.unlink(missing_ok=True)
    """),
    WrongAnswer(
        "named_after_the_process", "takes a process id for a name that no other machine uses",
        check=PART, says="(a disk that both machines share): ", look="under which name", edit="""
        -        part = target.with_name(f"data.{machine}.part")
        +        part = target.with_name(f"data.{os.getpid()}.part")
    """),
    WrongAnswer(
        "in_the_system_folder", "downloads into the folder for temporary files, which may be on another disk",
        check=FOLDER, says="(two machines): rank 0 downloaded to a file outside", look="on one disk", edit="""
        -        part = target.with_name(f"data.{machine}.part")
        +        import shutil, tempfile
        +        part = Path(tempfile.mkdtemp()) / "data.bin"
        @@
        -            part.replace(target)
        +            shutil.move(part, target)
    """),
    WrongAnswer(
        "waits_for_the_file", "waits until the file is there, which it never is after an error",
        check="does not end", says="(the download fails on machine", edit="""
        -        try:
        -            download(part)
        -            part.replace(target)
        -        except Exception as failure:
        -            error = f"machine {machine}: {failure}"
        -    errors = [None] * dist.get_world_size()
        -    dist.all_gather_object(errors, error)
        -    if any(errors):
        -        raise RuntimeError("; ".join(filter(None, errors)))
        +        download(part)
        +        part.replace(target)
        +    import time
        +    while not target.exists():
        +        time.sleep(0.05)
        +    dist.barrier()
    """),
    WrongAnswer(
        "only_os_errors", "catches errors of the disk alone, and leaves the others waiting after any other",
        check="does not end", says="in all_gather", look="which rank never comes to it", edit="""
        -        except Exception as failure:
        +        except OSError as failure:
    """),
    WrongAnswer(
        "cuts_the_text", "sends the beginning of the error",
        check=ERROR, says="without the download's error", look="send its text", edit="""
        -            error = f"machine {machine}: {failure}"
        +            error = f"machine {machine}: {failure}"[:80]
    """),
    WrongAnswer(
        "swallows_it", "gathers the errors and raises none",
        check=ERROR, says="raised nothing", edit="""
        -    if any(errors):
        -        raise RuntimeError("; ".join(filter(None, errors)))
    """),
    WrongAnswer(
        "sends_the_file", "lets rank 0 send what it has to the other machines",
        check=SENT, says="handed", look="what does a rank have to send", edit="""
        -    return target
        +    rest = [None] * dist.get_world_size()
        +    dist.all_gather_object(rest, target.read_bytes())
        +    return target
    """),
    RightAnswer(
        "a_flag_and_a_broadcast", "an all-reduce says whose download failed, and that rank broadcasts the text", text='''
        import os
        import tempfile
        from pathlib import Path

        import torch
        import torch.distributed as dist


        def prepare(folder, download):
            target, text = Path(folder, "data.bin"), ""
            if int(os.environ["LOCAL_RANK"]) == int(os.environ["LOCAL_WORLD_SIZE"]) - 1 and not target.is_file():
                handle, aside = tempfile.mkstemp(dir=folder)
                os.close(handle)
                try:
                    download(aside)
                    os.rename(aside, target)
                except BaseException as error:
                    os.unlink(aside)
                    text = f"{type(error).__name__}: {error}"
            failed = torch.tensor(dist.get_rank() if text else -1)
            dist.all_reduce(failed, op=dist.ReduceOp.MAX)
            if failed >= 0:
                message = [text]
                dist.broadcast_object_list(message, src=int(failed))
                raise OSError(f"rank {int(failed)} could not download: {message[0]}")
            return target
    '''),
    RightAnswer(
        "named_after_the_host", "names the part after the machine's host name", edit="""
        -        part = target.with_name(f"data.{machine}.part")
        +        part = target.with_name(f"{socket.gethostname()}.part")
        @@
        -import os
        +import os
        +import socket
    """),
)
