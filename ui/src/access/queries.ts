/** What the room asks the server. */

import { type QueryKey, useQuery } from "@tanstack/react-query";

import { answer, api } from "../api/client";

export const KEYS: QueryKey = ["access", "keys"];
export const USERS: QueryKey = ["access", "users"];
export const SESSIONS: QueryKey = ["access", "sessions"];
export const INVITATIONS: QueryKey = ["access", "invitations"];

export function useKeys() {
  return useQuery({ queryKey: KEYS, queryFn: () => answer(api.GET("/api/v1/keys")) });
}

export function useUsers(isOpen = true) {
  return useQuery({ queryKey: USERS, queryFn: () => answer(api.GET("/api/v1/users")), enabled: isOpen });
}

export function useSessions() {
  return useQuery({ queryKey: SESSIONS, queryFn: () => answer(api.GET("/api/v1/sessions")) });
}

export function useInvitations() {
  return useQuery({ queryKey: INVITATIONS, queryFn: () => answer(api.GET("/api/v1/invitations")) });
}

export function useJoining() {
  return useQuery({ queryKey: ["access", "joining"], queryFn: () => answer(api.GET("/api/v1/joining")) });
}
