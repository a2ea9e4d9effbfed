// The server replaces the user by the one who is logged in. Without a user, the box would not learn.
factorcell.attach(document.querySelector("#q"), { url: "/", user: "me", messages: { key: "Log in to keep searches." } });
