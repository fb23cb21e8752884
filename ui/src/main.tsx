import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import "./tokens.css";
import "./base.css";
import { App, BASE } from "./app";
import { pageAt } from "./pages";
import { applyTheme, storedTheme } from "./shell/theme";

applyTheme(storedTheme());

// The page comes while the session is asked for. If it does not, whoever draws it tells so.
pageAt(location.pathname.slice(BASE.length))
  ?.load()
  .catch(() => undefined);

const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no #root");
createRoot(root).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
