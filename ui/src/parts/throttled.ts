/** A value that changes at most so often, for what is expensive to draw again. */

import { useEffect, useRef, useState } from "react";

export function useThrottled<Value>(value: Value, milliseconds: number): Value {
  const [shown, setShown] = useState(value);
  const shownAt = useRef(0);
  useEffect(() => {
    const left = shownAt.current + milliseconds - Date.now();
    const timer = setTimeout(
      () => {
        shownAt.current = Date.now();
        setShown(value);
      },
      Math.max(0, left),
    );
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return shown;
}
