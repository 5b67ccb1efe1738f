"""Sample texts of every kind that conversations contain, for measuring estimates.

The estimator was not tuned on them.
"""

import base64
import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).parent.parent

_CHINESE = """昨天晚上的备份又失败了，我查了一下日志，发现磁盘空间只剩下不到两个G。你能不能帮我看看是哪个目录占得最多？
我记得上个月清理过一次，但是图片上传的功能上线以后，增长得特别快。先不要删除任何东西，把超过三十天的临时文件列出来给我看就行。
好的，我已经检查过了。占用最多的是上传目录，一共四十二个G，其中大约三分之二是用户头像的旧版本。建议的做法是：第一，把旧版本移到对象存储；
第二，每周日凌晨自动清理；第三，空间低于百分之十五的时候给你发一条提醒。需要我现在就写这个脚本吗？
可以，不过老规矩，生产环境的数据库不要碰，所有改动先在测试机上跑一遍。另外下周二我要出差，有问题直接在群里说。"""
_JAPANESE = """昨日の夜のバックアップがまた失敗しました。ログを見たところ、ディスクの空き容量が二ギガバイトもありません。どのフォルダが一番大きいか調べてもらえますか。
先月いちど整理したのですが、画像のアップロード機能を公開してから急に増えています。まだ何も消さないでください。三十日より古い一時ファイルの一覧だけお願いします。
承知しました。確認したところ、一番大きいのはアップロード用のフォルダで、四十二ギガバイトありました。そのうち三分の二ほどは、プロフィール画像の古い版です。
おすすめは、まず古い版を別の保存場所へ移し、毎週日曜の早朝に自動で片付け、空きが少なくなったらメッセージで知らせることです。スクリプトを書きましょうか。"""
_KOREAN = """어젯밤 백업이 또 실패했어요. 로그를 보니까 디스크에 남은 공간이 이 기가도 안 됩니다. 어느 폴더가 제일 큰지 확인해 주실 수 있나요?
지난달에 한 번 정리했는데, 사진 올리기 기능을 공개한 뒤로 갑자기 늘어난 것 같아요. 아직 아무것도 지우지 말고, 삼십 일이 지난 임시 파일 목록만 보여 주세요.
네, 확인했습니다. 가장 큰 곳은 업로드 폴더이고 모두 사십이 기가입니다. 그중 삼분의 이 정도는 프로필 사진의 예전 버전이에요.
먼저 예전 버전을 다른 저장소로 옮기고, 매주 일요일 새벽에 자동으로 정리하고, 공간이 부족해지면 알림을 보내는 방법을 추천합니다. 지금 스크립트를 작성할까요?"""
_RUSSIAN = """Вчера ночью резервное копирование снова не удалось. Я посмотрел журнал: на диске осталось меньше двух гигабайт. Можешь проверить, какая папка занимает больше всего?
В прошлом месяце мы уже наводили порядок, но после того как включили загрузку картинок, всё растёт очень быстро. Пока ничего не удаляй, просто покажи список временных файлов старше тридцати дней.
Хорошо, я проверил. Больше всего места занимает папка с загрузками, всего сорок два гигабайта, и примерно две трети из них это старые версии портретов.
Предлагаю сначала перенести старые версии в хранилище, затем каждое воскресенье чистить автоматически и предупреждать, когда места становится мало. Написать такой сценарий прямо сейчас?"""
_ARABIC = """فشل النسخ الاحتياطي مرة أخرى ليلة أمس. نظرت في السجل ووجدت أن المساحة المتبقية على القرص أقل من اثنين غيغابايت. هل يمكنك أن ترى أي مجلد هو الأكبر؟
قمنا بالترتيب في الشهر الماضي، لكن الحجم يزداد بسرعة منذ أن أضفنا رفع الصور. لا تحذف شيئا الآن، فقط اعرض علي قائمة الملفات المؤقتة التي مضى عليها أكثر من ثلاثين يوما.
حسنا، لقد تحققت من ذلك. المجلد الأكبر هو مجلد الملفات المرفوعة، وثلثاه تقريبا نسخ قديمة من الصور الشخصية.
أقترح أن ننقل النسخ القديمة إلى مكان آخر أولا، ثم ننظف تلقائيا كل يوم أحد، ونرسل تنبيها عندما تصبح المساحة قليلة. هل أكتب البرنامج الآن؟"""
_ENGLISH = """Last night's backup failed again. I had a look at the log and there are less than two gigabytes left on the disk, so could you find out which folder takes the most? We tidied up last month, but since people can upload pictures it has been growing like mad. Please don't delete anything yet, just show me the temporary files that are older than thirty days.

Sure, I checked. The largest one is the upload folder with forty-two gigabytes, and about two thirds of that are old versions of profile pictures. What I would do: first move the old versions to object storage, then clean up every Sunday before dawn, and send you a note when less than fifteen percent is free. Shall I write the script now?

Yes, but the usual rule holds: nobody touches the production database, and every change runs on the test machine first. I'm travelling next Tuesday, so if something goes wrong, say it in the group."""
_WORDS = ["order", "invoice", "worker", "queue", "region", "token", "shipment", "cache", "index", "payment"]
_EMOJI = "😀😂🙏🎉🔥✨💡🚀👍😅❤️🥳🤔👀💯🌱☕🍕📦✅⚠️🇯🇵👩‍💻👍🏽"


def passages() -> Mapping[str, list[str]]:
    """Return texts of each kind. Most are at least as long as a chat message."""
    chance = random.Random(20)
    ours = sorted((_ROOT / "hermes_state").glob("*.py"))[:12]
    return {
        "English": [*_pieces(_ENGLISH), _prose("reference/operations.md"), _prose("reference/storage.md")],
        "Python": [path.read_text(encoding="utf-8")[:4_000] for path in ours],
        "JSON": [json.dumps(_record(chance, 3), indent=indent) for indent in (None, 2, None, 2, None, 2)],
        "logs": ["\n".join(_log_line(chance) for _ in range(30)) for _ in range(6)],
        "hex, base64": [text for number in range(4) for text in _noise(chance, 200 + 150 * number)],
        "Chinese": _pieces(_CHINESE),
        "Japanese": _pieces(_JAPANESE),
        "Korean": _pieces(_KOREAN),
        "Russian": _pieces(_RUSSIAN),
        "Arabic": _pieces(_ARABIC),
        "emoji": [_cheerful(chance) for _ in range(6)],
    }


def _pieces(text: str) -> list[str]:
    return [text, *(line for line in text.split("\n") if line)]


def _prose(name: str) -> str:
    return (_ROOT / "docs" / name).read_text(encoding="utf-8")[:4_000]


def _record(chance: random.Random, depth: int) -> dict[str, object]:
    record: dict[str, object] = {"id": chance.randint(1, 10**7), "status": chance.choice(["open", "done", "failed"])}
    for word in chance.sample(_WORDS, 4):
        record[f"{word}_at"] = f"2026-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}T08:15:00Z"
        record[f"{word}Count"] = chance.randint(0, 5_000)
        record[word] = f"https://example.com/{word}/{chance.randint(1, 9_999)}"
    if depth:
        record["items"] = [_record(chance, depth - 1) for _ in range(2)]
    return record


def _log_line(chance: random.Random) -> str:
    at = f"2026-03-{chance.randint(1, 28):02} {chance.randint(0, 23):02}:{chance.randint(0, 59):02}:07,{chance.randint(0, 999):03}"
    level = chance.choice(["INFO", "WARNING", "ERROR"])
    what = chance.choice(["job finished", "connection lost, trying again", "lease expired", "request refused"])
    address = (
        f"10.{chance.randint(0, 255)}.{chance.randint(0, 255)}.{chance.randint(1, 254)}:{chance.randint(1024, 65535)}"
    )
    return f"{at} {level:7} {chance.choice(_WORDS)}[{chance.randint(100, 32000)}] {what} peer={address} took={chance.random() * 900:.1f}ms"


def _noise(chance: random.Random, size: int) -> tuple[str, str, str]:
    raw = chance.randbytes(size)
    sums = "\n".join(f"{hashlib.sha256(raw[at:]).hexdigest()}  data/{at}.bin" for at in range(0, size, 64))
    return raw.hex(), sums, base64.b64encode(raw).decode()


def _cheerful(chance: random.Random) -> str:
    words = _ENGLISH.split()
    return " ".join(f"{chance.choice(words)} {chance.choice(words)} {chance.choice(_EMOJI)}" for _ in range(60))
