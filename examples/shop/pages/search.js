// The server refuses requests for another user than the one who is logged in. Without a user, the box does not learn.
const session = async (body) =>
  (await fetch("/session", { method: "POST", body: JSON.stringify(body) })).json();
const { user } = await session({});
factorcell.attach(document.querySelector("#q"), { url: "/", user });

const logIn = document.querySelector("#log-in");
logIn.hidden = false;
logIn.querySelector("label").hidden = user !== null;
logIn.querySelector("button").textContent = user === null ? "Log in" : `Log out ${user}`;
logIn.addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = user === null ? new FormData(logIn).get("user") : null;
  await session({ user: name });
  location.reload();
});
