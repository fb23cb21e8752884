/** The part of the frame that scrolls; tables that draw only what is visible measure by it. */
export const SCROLLER_ID = "main";
