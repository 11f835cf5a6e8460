"""The languages of catalogues: their ISO 639-3 codes, the codes that catalogues use, and their scripts."""

from collections.abc import Sequence

from multidds._base.errors import UserError
from multidds._base.text import suggestion

ENGLISH = "eng"
RELATED = ("aze", "bel", "glg", "slk", "tur", "rus", "por", "ces")  # the paper's Related group

# ISO 639-3 code = the codes that catalogues use, by the script that they are written in ("": not checked).
_LANGUAGES = {
    "LATIN": "ach=ach afr=af ast=ast aze=az bos=bs bre=br cat=ca ces=cs cym=cy dan=da deu=de dsb=dsb epo=eo est=et "
    "eus=eu fin=fi fra=fr fry=fy gla=gd gle=ga glg=gl gsw=gsw hat=ht hrv=hr hsb=hsb hun=hu ibo=ig ido=io ina=ia "
    "ind=id isl=is ita=it kab=kab lav=lv lit=lt ltz=lb mlt=mt mri=mi msa=ms nld=nl nno=nn nob=nb,no,nor pol=pl por=pt "
    "ron=ro slk=sk slv=sl som=so spa=es sqi=sq swa=sw swe=sv tet=tet tuk=tk tur=tr vie=vi",
    "CYRILLIC": "bel=be bul=bg kaz=kk kir=ky mkd=mk mon=mn oss=os rus=ru srp=sr tat=tt tgk=tg udm=udm ukr=uk",
    "ARABIC": "ara=ar ckb=ckb fas=fa pus=ps uig=ug urd=ur",
    "DEVANAGARI": "hin=hi mar=mr nep=ne",
    "GREEK": "ell=el",
    "HEBREW": "heb=he,iw",
    "HANGUL": "kor=ko",
    "CJK HIRAGANA KATAKANA": "jpn=ja",
    "CJK": "zho=zh",
    "ARMENIAN": "hye=hy",
    "GEORGIAN": "kat=ka",
    "ETHIOPIC": "amh=am",
    "BENGALI": "ben=bn",
    "GUJARATI": "guj=gu",
    "GURMUKHI": "pan=pa",
    "KANNADA": "kan=kn",
    "MALAYALAM": "mal=ml",
    "SINHALA": "sin=si",
    "TAMIL": "tam=ta",
    "TELUGU": "tel=te",
    "THAANA": "div=dv",
    "KHMER": "khm=km",
    "LAO": "lao=lo",
    "MYANMAR": "mya=my",
    "THAI": "tha=th",
    "": "uzb=uz",
}
SCRIPTS = {entry.partition("=")[0]: names.split() for names, row in _LANGUAGES.items() for entry in row.split()}
_BY_CODE = {
    code: language
    for row in _LANGUAGES.values()
    for language, _, codes in (entry.partition("=") for entry in row.split())
    for code in [language, *codes.split(",")]
}
# Slavic plurals: whatever the number of forms, the first is that of 1 and the last that of many.
FIRST_ONE_LAST_MANY = {"bel", "bos", "ces", "hrv", "pol", "rus", "slk", "slv", "srp", "ukr"}


def languages_of(given: Sequence[str]) -> list[str]:
    """Returns ISO 639-3 codes for codes of two or three letters."""
    codes = [code.strip().lower() for code in given]
    for code in codes:
        if code in ("en", ENGLISH):
            raise UserError(
                f"--languages: {code!r} is the other side of every pair; name the languages to pair it with."
            )
        if code not in _BY_CODE:
            known = suggestion(code, tuple(_BY_CODE)) or f" Known are {', '.join(sorted(SCRIPTS))}."
            raise UserError(f"--languages: there is no language {code!r}.{known}")
    if not codes:
        raise UserError("--languages: name at least one, as in --languages aze,tur.")
    return list(dict.fromkeys(_BY_CODE[code] for code in codes))


def language_of(code: str) -> str | None:
    """Returns the language of a catalogue's code (pt_BR: por); None if it is unknown or in an unusual script."""
    base, *tags = code.replace("_", "-").lower().split("-")
    if "@" in code or any(len(tag) == 4 and tag.isalpha() and tag != "hans" for tag in tags):
        return None  # sr_Latn, zh-Hant, uz@Cyrl
    if base == "zh" and {"tw", "hk", "mo"} & set(tags):
        return None
    return _BY_CODE.get(base)
