"""Lines of chats in several languages, written for the tests."""

from __future__ import annotations

ENGLISH = [
    "hey are you coming to the party tonight? i think everyone will be there",
    "lol no way, i have to study for my exam tomorrow",
    "my dog just ate my sandwich again :(",
    "Return the sum of the array elements over the given axis.",
    "Raise an error if the input is not a fitted estimator.",
]
FOREIGN = {
    "German": [
        "Kommst du heute Abend zur Feier? Ich glaube, alle werden da sein",
        "Mein Hund hat schon wieder mein Brötchen gefressen",
    ],
    "Turkish": [
        "Bu akşam partiye geliyor musun? Sanırım herkes orada olacak",
        "Hayır, yarınki sınavıma çalışmam gerekiyor",
    ],
    "Indonesian": [
        "Apakah kamu datang ke pesta malam ini? Aku rasa semua orang akan ada di sana",
        "Tidak, aku harus belajar untuk ujian besok",
    ],
    "Chinese": ["你今晚来参加聚会吗？我想大家都会来", "不行，我明天要考试，得复习"],
    "Russian": [
        "Ты придёшь сегодня на вечеринку? Думаю, все там будут",
        "Моя собака опять съела мой бутерброд",
    ],
    "Arabic": ["هل ستأتي إلى الحفلة الليلة؟ أظن أن الجميع سيكون هناك", "أكل كلبي شطيرتي مرة أخرى"],
}
