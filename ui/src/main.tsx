import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import "./tokens.css";
import "./base.css";
import { App } from "./app";
import { applyTheme, storedTheme } from "./shell/theme";

applyTheme(storedTheme());

const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no #root");
createRoot(root).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
