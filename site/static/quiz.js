// A choice that is opened says if it is right. What was chosen first is kept by this browser alone, page by page.
(() => {
  const choices = [...document.querySelectorAll("article details")];
  const reason = (choice) => choice.textContent.slice(choice.querySelector("summary").textContent.length).trim();
  const isRight = (choice) => reason(choice).startsWith("Right:");
  const questions = choices
    .filter((choice) => choice.previousElementSibling?.tagName !== "DETAILS")
    .map((first) => {
      const group = [first];
      while (group.at(-1).nextElementSibling?.tagName === "DETAILS") group.push(group.at(-1).nextElementSibling);
      return { text: first.previousElementSibling?.textContent ?? "", group };
    })
    .filter(({ group }) => group.length > 1 && group.filter(isRight).length === 1);
  if (!questions.length) return;

  const key = `quiz ${location.pathname}`;
  let answers = {}; // the text of a question: the choice that was opened first
  try {
    answers = JSON.parse(localStorage.getItem(key)) ?? {};
  } catch {} // a browser that keeps nothing counts until the page is closed

  const counter = document.createElement("p");
  counter.className = "quiz-counter";
  counter.setAttribute("role", "status");
  const again = document.createElement("button");
  again.type = "button";
  again.textContent = "start again";
  again.addEventListener("click", () => {
    answers = {};
    for (const mark of document.querySelectorAll(".quiz-mark")) mark.remove();
    for (const { group } of questions) for (const choice of group) choice.open = false;
    keep();
  });

  function mark(choice) {
    if (choice.querySelector(".quiz-mark")) return;
    const word = document.createElement("span");
    word.className = `quiz-mark ${isRight(choice) ? "right" : "wrong"}`;
    word.textContent = isRight(choice) ? " ✓ right" : " ✗ wrong";
    choice.querySelector("summary").append(word);
  }

  function count() {
    const chosen = questions.map(({ text, group }) => group[answers[text]]).filter(Boolean);
    counter.textContent = `${chosen.length} of ${questions.length} questions answered, ${chosen.filter(isRight).length} right at once `;
    if (chosen.length) counter.append(again);
  }

  function keep() {
    try {
      localStorage.setItem(key, JSON.stringify(answers));
    } catch {}
    count();
  }

  for (const { text, group } of questions) {
    if (group[answers[text]]) mark(group[answers[text]]);
    group.forEach((choice, number) =>
      choice.querySelector("summary").addEventListener("click", () => {
        if (choice.open) return; // it is being closed
        mark(choice);
        answers[text] ??= number;
        keep();
      }),
    );
  }
  count();
  document.querySelector("article").append(counter);
})();
